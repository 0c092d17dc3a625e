"""`python -m tests.support.confined`: the attacks of `hostile`, with or without confinement.

Standard input is JSON: `{"rules": … or null, "folder": where to work, "targets": …}`.
"""

from __future__ import annotations

import json
import os
import sys

from molecule_hermes.plugin import landlock
from tests.support import hostile


def main() -> None:
    given = json.load(sys.stdin)
    os.chdir(given["folder"])
    if given["rules"]:
        landlock.confine(landlock.Rules.parse(given["rules"]))
    hostile.main(given["targets"])


if __name__ == "__main__":
    main()
