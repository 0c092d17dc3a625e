"""Runs commands with fewer privileges than the tests have."""

from __future__ import annotations

import os
import shutil

import pytest


def unprivileged() -> list[str]:
    """Root with its capabilities reads every process; without them it is a user like others."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv, or a user that is not root")
    return [setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
