#!/bin/sh
# The image's entrypoint: runs molecule-hermes up [ARGS] with the settings from the environment.
set -eu
if ! mkdir -p "$HOME" "$TMPDIR"; then
  echo "entrypoint: $MOLECULE_HERMES_STATE_DIR needs a volume that user $(id -u) may write to" >&2
  exit 1
fi
exec molecule-hermes up "$@"
