#!/bin/sh
# The image's entrypoint: runs molecule-hermes up [ARGS] with the settings from the environment.
set -eu
if ! mkdir -p "$HOME" "$TMPDIR"; then
  echo "entrypoint: user $(id -u) cannot write to $MOLECULE_HERMES_STATE_DIR; mount a volume there that this user owns" >&2
  exit 1
fi
exec molecule-hermes up "$@"
