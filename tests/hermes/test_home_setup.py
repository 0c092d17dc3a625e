"""What `up` writes into Hermes's folder."""

from __future__ import annotations

import pytest

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home_setup import api_address


def test_up_refuses_an_api_address_on_another_machine() -> None:
    remote = Settings.from_env({"HERMES_API_BASE": "http://10.0.0.1:8642/v1"})
    with pytest.raises(StartError, match="serve"):
        api_address(remote)
    assert api_address(Settings.from_env({})) == ("127.0.0.1", 8642)
