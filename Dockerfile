# Installs the bridge, its plugin and Hermes into one virtual environment.
#   docker build -t molecule-hermes .
# The image of a platform's workspace: --target workspace (docs/deploy.md)
# Without a package index: --build-context wheels=DIR --build-arg PIP_NO_INDEX=1
ARG BASE=python:3.13.9-slim-trixie

# This stage is empty unless the build passes a context named wheels.
FROM scratch AS wheels

FROM ${BASE} AS build
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
RUN python3 -m venv /opt/molecule-hermes
WORKDIR /src
# Install the dependencies first, so that this layer stays cached when only our own code changes.
COPY constraints.txt pyproject.toml ./
RUN --mount=type=bind,from=wheels,target=/wheels \
    python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" >needed.txt \
    && /opt/molecule-hermes/bin/pip install --no-cache-dir --disable-pip-version-check \
       --find-links /wheels --constraint constraints.txt --requirement needed.txt
COPY README.md ./
COPY molecule_hermes ./molecule_hermes
RUN --mount=type=bind,from=wheels,target=/wheels \
    /opt/molecule-hermes/bin/pip install --no-cache-dir --disable-pip-version-check \
       --find-links /wheels --no-deps .

FROM ${BASE} AS installed
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="molecule-hermes" \
      org.opencontainers.image.description="A bridge between A2A peers and the Hermes agent, with Hermes" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# tini reaps the processes that Hermes's tools leave behind, and forwards signals.
RUN if ! command -v tini >/dev/null; then \
      apt-get update && apt-get install --yes --no-install-recommends tini \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/*; \
    fi
COPY --from=build /opt/molecule-hermes /opt/molecule-hermes
COPY --chmod=755 scripts/entrypoint.sh scripts/workspace.sh /opt/molecule-hermes/bin/
ENV PATH=/opt/molecule-hermes/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
STOPSIGNAL SIGTERM

# The image of a platform's workspace: the command is the platform's runtime, which uses the adapter.
FROM installed AS workspace
ARG AGENT=agent
ARG AGENT_UID=1000
ARG AGENT_HOME=/home/agent
ARG FOLDERS="/configs /workspace"
# For the agent's tools; empty leaves them out.
ARG TOOLS="git curl ca-certificates"
# Extras of molecule-hermes; empty leaves them out.
ARG EXTRAS=mcp
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
RUN if [ -n "${TOOLS}" ]; then \
      apt-get update && apt-get install --yes --no-install-recommends ${TOOLS} \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/*; \
    fi \
    && useradd --uid "${AGENT_UID}" --user-group --no-create-home --home-dir "${AGENT_HOME}" "${AGENT}" \
    && install --directory --owner "${AGENT}" --group "${AGENT}" "${AGENT_HOME}" ${FOLDERS}
COPY constraints.txt /opt/molecule-hermes/constraints.txt
RUN --mount=type=bind,from=wheels,target=/wheels \
    if [ -n "${EXTRAS}" ]; then \
      pip install --no-cache-dir --disable-pip-version-check --find-links /wheels \
        --constraint /opt/molecule-hermes/constraints.txt "molecule-hermes[${EXTRAS}]"; \
    fi
ENV HOME=${AGENT_HOME} \
    TMPDIR=${AGENT_HOME}/tmp \
    HERMES_HOME=${AGENT_HOME}/.hermes \
    MOLECULE_HERMES_STATE_DIR=${AGENT_HOME}/.molecule-hermes \
    MOLECULE_HERMES_WORKSPACE=/workspace \
    ADAPTER_MODULE=molecule_hermes.adapter
USER ${AGENT_UID}:${AGENT_UID}
WORKDIR ${AGENT_HOME}
ENTRYPOINT ["tini", "-s", "-g", "--", "workspace.sh"]

FROM installed
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data/home hermes \
    && install --directory --owner hermes --group hermes /data
# All files are written below the volume, so the root file system can be read-only.
ENV HOME=/data/home \
    TMPDIR=/data/tmp \
    HERMES_HOME=/data/hermes \
    MOLECULE_HERMES_STATE_DIR=/data \
    MOLECULE_HERMES_HOST=0.0.0.0
USER 10001:10001
WORKDIR /data
VOLUME /data
HEALTHCHECK --interval=15s --timeout=10s --start-period=150s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('MOLECULE_HERMES_PORT', '8000') + '/readyz', timeout=8)"]
ENTRYPOINT ["tini", "-s", "--", "entrypoint.sh"]
