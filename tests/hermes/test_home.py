from __future__ import annotations

import contextlib
import os
import stat
import string
from pathlib import Path

import psutil
import pytest
import yaml as pyyaml
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.config import Settings
from molecule_hermes.errors import StartError
from molecule_hermes.hermes.home import HermesHome, write_atomically
from molecule_hermes.hermes.home_setup import configure
from molecule_hermes.hermes.model_choice import demo_choice

EXISTING = """\
# my own Hermes
model:
  default: my-model  # the good one
  provider: openrouter
memory:
  enabled: true
agent:
  restart_drain_timeout: 99
gateway:
  # keep this
  other: [1, 2]
"""


@pytest.fixture
def home(tmp_path: Path) -> HermesHome:
    home = HermesHome(tmp_path / "hermes")
    home.create()
    return home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_merge_keeps_comments_and_other_keys(home: HermesHome) -> None:
    home.config_file.write_text(EXISTING)
    home.merge_config(
        {"gateway": {"api_server": {"max_concurrent_runs": 3}}},
        {"agent": {"restart_drain_timeout": 20, "new": 1}, "memory": 5},
    )
    text = home.config_file.read_text()
    for line in EXISTING.splitlines():
        assert line.strip() in text
    config = home.read_config()
    assert config["gateway"]["api_server"]["max_concurrent_runs"] == 3
    assert config["agent"] == {"restart_drain_timeout": 99, "new": 1}
    assert mode(home.config_file) == 0o600


def test_a_merge_that_changes_nothing_does_not_touch_the_file(home: HermesHome) -> None:
    home.merge_config({"a": {"b": 1}})
    before = home.config_file.stat().st_ino
    home.merge_config({"a": {"b": 1}}, {"a": {"b": 2}})
    assert home.config_file.stat().st_ino == before


def test_words_that_yaml_1_1_reads_as_booleans_stay_words(home: HermesHome) -> None:
    home.merge_config({"a": {"b": "off", "c": "On"}, "d": False})
    read = pyyaml.safe_load(home.config_file.read_text())
    assert read == {"a": {"b": "off", "c": "On"}, "d": False}


def test_a_name_is_added_to_a_list_once_and_comments_stay(home: HermesHome) -> None:
    home.config_file.write_text("plugins:\n  enabled:\n  - mine  # of old\n")
    for _ in range(2):
        home.change_list(("plugins", "enabled"), add="ours")
    assert "mine  # of old" in home.config_file.read_text()
    assert home.read_config()["plugins"]["enabled"] == ["mine", "ours"]
    home.change_list(("plugins", "enabled"), remove="mine")
    home.change_list(("plugins", "disabled"), remove="mine")
    assert home.read_config()["plugins"] == {"enabled": ["ours"]}


def test_configuring_twice_has_the_effect_of_configuring_once(
    home: HermesHome, tmp_path: Path
) -> None:
    settings = Settings.from_env({"MOLECULE_HERMES_STATE_DIR": str(tmp_path)})
    home.env_file.write_text("# mine\nFOO=bar\nexport API_SERVER_PORT=1\n")
    configure(home, settings, demo_choice("http://127.0.0.1:1/v1"))
    first = home.config_file.read_text(), home.env_file.read_text()
    configure(home, settings, demo_choice("http://127.0.0.1:1/v1"))
    assert (home.config_file.read_text(), home.env_file.read_text()) == first
    assert home.read_env()["API_SERVER_PORT"] == "8642"
    assert "# mine\nFOO=bar\n" in home.env_file.read_text()
    assert mode(home.env_file) == mode(home.config_file) == 0o600


def test_a_model_that_the_user_wrote_is_recognised(home: HermesHome) -> None:
    assert home.foreign_model() is None
    home.set_model(demo_choice("http://127.0.0.1:1/v1").block)
    assert home.foreign_model() is None
    home.merge_config({"model": {"default": "chosen-by-hand"}})
    assert home.foreign_model() is not None
    home.config_file.write_text("model: plain-name\n")
    assert home.foreign_model() == {"default": "plain-name"}


def test_a_new_model_replaces_the_whole_block(home: HermesHome) -> None:
    home.set_model(demo_choice("http://127.0.0.1:1/v1").block)
    home.set_model({"default": "m", "provider": "openrouter"})
    assert home.read_config()["model"] == {"default": "m", "provider": "openrouter"}


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2\n", "just text", "a: 1\n\t- b"])
def test_a_broken_config_is_reported_and_not_changed(home: HermesHome, text: str) -> None:
    home.config_file.write_text(text)
    with pytest.raises(StartError, match=r"config\.yaml"):
        home.merge_config({"a": 1})
    assert home.config_file.read_text() == text


@given(st.text())
def test_any_config_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    home = HermesHome(tmp_path_factory.mktemp("home"))
    home.config_file.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(StartError):
        home.read_config()
        home.foreign_model()


_names = st.text(string.ascii_uppercase, min_size=1, max_size=6)
_values = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)


@given(
    st.lists(st.one_of(st.text(string.printable), st.builds("{}={}".format, _names, _values))),
    st.dictionaries(_names, _values),
)
def test_any_env_file_accepts_new_values_and_keeps_the_rest(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], values: dict[str, str]
) -> None:
    home = HermesHome(tmp_path_factory.mktemp("home"))
    home.env_file.write_text("\n".join(lines))
    before = home.read_env()
    home.merge_env(values)
    assert home.read_env() == before | values


def test_a_file_is_replaced_in_one_step_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fails(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="HERMES_HOME"):
        HermesHome(tmp_path / "file" / "hermes").create()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 999999999}'])
def test_a_stale_pid_file_does_not_count_as_a_running_gateway(home: HermesHome, text: str) -> None:
    (home.path / "gateway.pid").write_text(text)
    assert home.running_gateway() is None


@pytest.mark.parametrize(
    "value",
    [
        "plain-0123456789",
        "my secret # key",
        "a$b",
        'say "hi"',
        "it's",
        "'quoted'",
        "both\"'",
        "a\\b",
    ],
)
def test_a_value_is_read_back_as_it_was_written(tmp_path: Path, value: str) -> None:
    home = HermesHome(tmp_path)
    home.merge_env({"API_SERVER_KEY": value})
    assert dotenv_values(home.env_file)["API_SERVER_KEY"] == value
    assert home.read_env()["API_SERVER_KEY"] == value


@given(st.text(string.printable), st.text("'\"\\$#{} a"))
def test_any_value_is_read_back_as_it_was_written_or_refused(
    tmp_path_factory: pytest.TempPathFactory, before: str, value: str
) -> None:
    home = HermesHome(tmp_path_factory.mktemp("home"))
    home.env_file.write_text(before)
    kept = home.env_file.read_bytes()
    try:
        home.merge_env({"SECRET": value})
    except StartError as error:
        assert "SECRET" in str(error)
        assert home.env_file.read_bytes() == kept
    else:
        assert dotenv_values(home.env_file)["SECRET"] == value


def test_a_value_that_dotenv_would_expand_is_refused_by_its_name(home: HermesHome) -> None:
    with pytest.raises(StartError, match="API_SERVER_KEY"):
        home.merge_env({"API_SERVER_KEY": "a${HOME}b"})


def test_a_merge_keeps_quotes(home: HermesHome) -> None:
    """Hermes reads YAML 1.1, where a bare `on` is true and 12:30:00 a number."""
    text = 'mine: "on"\nalso: \'off\'\nat: "12:30:00"\n'
    home.config_file.write_text(text)
    home.merge_config({"a": 1})
    assert home.config_file.read_text() == text + "a: 1\n"


@pytest.mark.parametrize(
    "text", ["# model: mine\n# more\n", "# one\n\n# two", "", "---\n# x\n", "null # x\n"]
)
def test_a_merge_keeps_a_file_of_comments_only(home: HermesHome, text: str) -> None:
    home.config_file.write_text(text)
    home.merge_config({"a": {"b": 1}})
    written = home.config_file.read_text()
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in written.splitlines() if line.startswith("#")
    ]
    assert home.read_config() == {"a": {"b": 1}}
    assert "a:\n  b: 1\n" in written


def test_its_own_process_is_never_taken_for_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed container's gateway.pid, read by the process that got its number in the next."""
    (tmp_path / "gateway.pid").write_text(f'{{"pid": {os.getpid()}}}')
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: ["molecule-hermes", "up"])
    assert HermesHome(tmp_path).running_gateway() is None


def test_only_one_bridge_at_a_time_can_use_a_folder(home: HermesHome) -> None:
    with home.held(), pytest.raises(StartError, match="another molecule-hermes"), home.held():
        pass
    with home.held():
        pass


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (None, set()),
        ("not json", set()),
        ("[]", set()),
        ('{"providers": {"nous": {"access_token": "x"}, "openai-codex": {}}}', {"nous"}),
        ('{"credential_pool": {"xai": [{"source": "env:XAI_API_KEY"}]}}', set()),
        ('{"credential_pool": {"xai": [{"source": "manual"}]}}', {"xai"}),
        ('{"credential_pool": {"custom": [{"source": "model_config"}]}}', set()),
        ('{"providers": 1, "credential_pool": "x"}', set()),
    ],
)
def test_a_login_of_hermes_is_recognised(
    home: HermesHome, store: str | None, expected: set[str]
) -> None:
    home.create()
    if store is not None:
        (home.path / "auth.json").write_text(store)
    assert home.logins() == expected
