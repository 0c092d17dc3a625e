"""What `up` writes into Hermes's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.home_setup import api_address, configure


def test_up_refuses_an_api_address_on_another_machine() -> None:
    remote = Settings.from_env({"HERMES_API_BASE": "http://10.0.0.1:8642/v1"})
    with pytest.raises(StartError, match="serve"):
        api_address(remote)
    assert api_address(Settings.from_env({})) == ("127.0.0.1", 8642)


def test_hermes_works_in_the_workspace_unless_its_operator_chose_a_folder(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    environ = {
        "HERMES_HOME": str(tmp_path / "hermes"),
        "MOLECULE_HERMES_WORKSPACE": str(tmp_path / "workspace"),
    }
    settings = Settings.from_env(environ)
    home = HermesHome(settings.home)
    configure(home, settings, None)
    assert home.read_config()["terminal"]["cwd"] == str(tmp_path / "workspace")
    home.config_file.write_text("terminal: {cwd: /srv/mine}\n")
    configure(home, settings, None)
    assert home.read_config()["terminal"] == {"cwd": "/srv/mine"}


def test_a_workspace_that_does_not_exist_is_no_folder_to_work_in(tmp_path: Path) -> None:
    environ = {
        "MOLECULE_HERMES_STATE_DIR": str(tmp_path),
        "MOLECULE_HERMES_WORKSPACE": str(tmp_path / "missing"),
    }
    settings = Settings.from_env(environ)
    home = HermesHome(settings.home)
    configure(home, settings, None)
    assert home.read_config()["terminal"]["cwd"] == str(tmp_path / "work")
    assert not (tmp_path / "missing").exists()
