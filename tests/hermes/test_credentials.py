"""Which API key and secret count, and which are generated."""

from __future__ import annotations

from pathlib import Path

import pytest

from molecule_hermes.config import Settings
from molecule_hermes.hermes.credentials import (
    Credentials,
    create_credentials,
    known_credentials,
    public_environment,
)
from molecule_hermes.hermes.home import HermesHome
from molecule_hermes.hermes.home_setup import configure
from molecule_hermes.plugin.settings import API_KEY, SECRET

KEPT = {API_KEY: "a-key-in-the-file-of-env", SECRET: "a-secret-in-the-file-of-env"}


@pytest.fixture
def home(tmp_path: Path) -> HermesHome:
    home = HermesHome(tmp_path / "hermes")
    home.create()
    return home


@pytest.fixture
def own_folder(home: HermesHome, tmp_path: Path) -> Settings:
    # The image names the bridge's own folder in HERMES_HOME.
    return Settings.from_env(
        {"MOLECULE_HERMES_STATE_DIR": str(tmp_path), "HERMES_HOME": str(home.path)}
    )


@pytest.fixture
def users_folder(home: HermesHome, tmp_path: Path) -> dict[str, str]:
    return {"MOLECULE_HERMES_STATE_DIR": str(tmp_path / "state"), "HERMES_HOME": str(home.path)}


def started(home: HermesHome, settings: Settings) -> Credentials:
    """What `up` does."""
    credentials = create_credentials(settings)
    configure(home, settings, None)
    return credentials


def test_in_a_folder_of_our_own_each_start_has_new_secrets_and_none_is_in_the_file(
    home: HermesHome, own_folder: Settings
) -> None:
    home.env_file.write_text("# mine\nFOO=bar\n")
    home.merge_env(KEPT)
    first, second = (started(home, own_folder) for _ in range(2))
    made = {first.api_key, first.secret, second.api_key, second.secret}
    assert len(made) == 4
    assert all(len(secret) >= 32 for secret in made)
    assert not KEPT.keys() & home.read_env().keys()
    assert home.env_file.read_text().startswith("# mine\nFOO=bar\n")


def test_secrets_in_a_folder_of_the_users_own_stay_and_are_used(
    home: HermesHome, users_folder: dict[str, str]
) -> None:
    settings = Settings.from_env(users_folder)
    assert started(home, settings).api_key not in home.env_file.read_text()
    home.merge_env(KEPT)
    credentials = started(home, settings)
    assert (credentials.api_key, credentials.secret) == tuple(KEPT.values())
    assert known_credentials(settings) == credentials
    assert home.read_env() | KEPT == home.read_env()
    # Hermes does not accept one that short.
    home.merge_env({API_KEY: "short"})
    assert len(started(home, settings).api_key) >= 16


def test_the_environments_secrets_count_first_and_are_not_written(
    home: HermesHome, users_folder: dict[str, str]
) -> None:
    secrets = {API_KEY: "a-key-of-the-environment", SECRET: "a-secret-of-the-environment"}
    home.merge_env(KEPT)
    settings = Settings.from_env(users_folder | secrets)
    credentials = started(home, settings)
    assert (credentials.api_key, credentials.secret) == tuple(secrets.values())
    assert known_credentials(settings) == credentials
    assert "of-the-environment" not in home.env_file.read_text()


def test_a_folder_that_is_kept_as_it_is_gets_a_key_only_if_its_api_server_is_enabled(
    home: HermesHome, own_folder: Settings
) -> None:
    """A key alone would enable Hermes's API server."""
    credentials = create_credentials(own_folder, keep_config=True)
    assert credentials.api_key == ""
    assert len(credentials.secret) >= 32
    # As an earlier `up` left it.
    home.merge_env({"API_SERVER_ENABLED": "true"})
    assert len(create_credentials(own_folder, keep_config=True).api_key) >= 32
    home.merge_env(KEPT)
    assert create_credentials(own_folder, keep_config=True).api_key == KEPT[API_KEY]


def test_unknown_credentials_of_a_running_hermes_are_not_made_up(own_folder: Settings) -> None:
    assert known_credentials(own_folder) == Credentials("", "")


def test_credentials_hide_their_values() -> None:
    assert "hidden" not in repr(Credentials("hidden", "hidden"))


def test_the_public_environment_has_neither_secrets_nor_the_bridges_settings() -> None:
    environ = KEPT | {"OPENROUTER_API_KEY": "sk-1", "MOLECULE_HERMES_TOKEN": "t", "PATH": "/bin"}
    assert public_environment(environ) == {"PATH": "/bin"}
