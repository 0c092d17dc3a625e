"""Where the command begins: Ctrl-C while the rest is still being loaded leaves no trace either."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    try:
        from molecule_hermes.cli.main import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
