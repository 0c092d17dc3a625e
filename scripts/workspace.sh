#!/bin/sh
# The entrypoint of a workspace's image: workspace.sh COMMAND [ARGS]
# Runs Hermes in the background, and the platform's runtime (COMMAND) in the foreground.
set -eu
if [ $# = 0 ]; then
  echo "workspace: name the platform's runtime as the command" >&2
  exit 2
fi
mkdir -p "$HOME" "$TMPDIR"
random() { python3 -c 'import secrets; print(secrets.token_hex(32))'; }
# Hermes and the adapter in the runtime share them.
export MOLECULE_A2A_PLATFORM_ENABLED=true
: "${MOLECULE_A2A_PLATFORM_SHARED_SECRET:=$(random)}" "${API_SERVER_KEY:=$(random)}"
export MOLECULE_A2A_PLATFORM_SHARED_SECRET API_SERVER_KEY
case "$(printf %s "${MOLECULE_SMOKE_MODE:-}" | tr '[:upper:]' '[:lower:]')" in
  "" | 0 | f | false | n | no | off)
    # The runtime is reachable beyond loopback, so the demo model must be asked for by name.
    [ "${MOLECULE_HERMES_DEMO:-}" = always ] || MOLECULE_HERMES_DEMO=never
    export MOLECULE_HERMES_DEMO
    # Nobody calls this bridge: peers reach the runtime, whose adapter talks to the same Hermes.
    # If Hermes cannot run, the runtime waits for it in vain, so it ends, too.
    # There is one agent with one Hermes, whatever is set for bridges with peers of their own.
    {
      MOLECULE_HERMES_HOST=127.0.0.1 MOLECULE_HERMES_PORT=0 MOLECULE_A2A_CALLBACK_PORT=0 \
        MOLECULE_HERMES_ISOLATION=shared MOLECULE_HERMES_CONFIG='' \
        MOLECULE_HERMES_PEER_TOKENS="nobody:$(random)" molecule-hermes up || kill -TERM $$
    } &
    ;;
esac
exec "$@"
