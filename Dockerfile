# Installs the bridge, its plugin and Hermes into one virtual environment.
#   docker build -t molecule-hermes .
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

FROM ${BASE}
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
    fi \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /data/home hermes \
    && install --directory --owner hermes --group hermes /data
COPY --from=build /opt/molecule-hermes /opt/molecule-hermes
COPY --chmod=755 scripts/entrypoint.sh /opt/molecule-hermes/bin/entrypoint.sh
# All files are written below the volume, so the root file system can be read-only.
ENV PATH=/opt/molecule-hermes/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/data/home \
    TMPDIR=/data/tmp \
    HERMES_HOME=/data/hermes \
    MOLECULE_HERMES_STATE_DIR=/data \
    MOLECULE_HERMES_HOST=0.0.0.0 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=150s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ.get('MOLECULE_HERMES_PORT', '8000') + '/readyz', timeout=8)"]
ENTRYPOINT ["tini", "-s", "--", "entrypoint.sh"]
