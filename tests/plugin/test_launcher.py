"""What Hermes is handed at its start, and whom the plugin calls back."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.plugin.callbacks import CallbackRefusedError, require_allowed
from molecule_hermes.plugin.handover import Confinement, Handover, HandoverError
from molecule_hermes.plugin.landlock import Rules
from molecule_hermes.plugin.settings import PluginSettings

TEXT = st.text(max_size=20)
NAMES = st.sampled_from(["config.yaml", ".env", "skills/a/SKILL.md"])
PATHS = st.lists(TEXT).map(tuple)
PORTS = st.none() | st.lists(st.integers(0, 65535)).map(tuple)
RULES = st.builds(Rules, PATHS, PATHS, PATHS, PORTS)


@given(
    st.builds(
        Handover,
        secret=TEXT,
        api_key=TEXT,
        callbacks=st.lists(TEXT).map(tuple),
        environ=st.dictionaries(TEXT, TEXT),
        disabled_toolsets=st.lists(TEXT).map(tuple),
        confinement=st.none() | st.builds(Confinement, RULES, st.booleans()),
        remove=st.lists(NAMES).map(tuple),
        files=st.dictionaries(NAMES, TEXT),
    )
)
def test_a_handover_is_read_as_it_was_written(handover: Handover) -> None:
    assert Handover.read(io.BytesIO(handover.to_bytes())) == handover


@given(st.binary() | st.recursive(st.none() | TEXT, st.lists).map(lambda v: json.dumps(v).encode()))
def test_invalid_input_is_refused_without_quoting_it(data: bytes) -> None:
    with pytest.raises(HandoverError) as refused:
        Handover.read(io.BytesIO(data))
    assert refused.value.__cause__ is None


def test_no_secret_is_in_its_repr() -> None:
    handover = Handover("s3cret", "k3y", environ={"NAME": "v4lue"})
    assert not any(secret in repr(handover) for secret in ("s3cret", "k3y", "v4lue"))


def test_without_a_handover_hermes_is_not_started(tmp_path: Path) -> None:
    """Somebody, or Hermes itself, started the command again: it would run without a secret."""
    ended = subprocess.run(
        [sys.executable, "-m", "molecule_hermes.plugin.launcher", "hermes", "gateway", "run"],
        env={"PATH": os.environ["PATH"], "HERMES_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2
    assert "molecule-hermes up" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "callbacks", "allowed"),
    [
        ("http://127.0.0.1:1/x", (), True),
        ("http://[::1]:1/x", (), True),
        ("http://localhost/x", (), True),
        ("http://10.0.0.7/x", (), False),
        ("http://127.0.0.1.example/x", (), False),
        ("http://127.0.0.1:8646/x", ("127.0.0.1:8646",), True),
        ("http://127.0.0.1:8647/x", ("127.0.0.1:8646",), False),
        ("http://127.0.0.1:8647/x", ("127.0.0.1",), True),
        ("http://[::1]:8646/x", ("[::1]:8646",), True),
        ("http://[::1]:8646/x", ("::1",), True),
        ("http://bridge.internal/x", ("bridge.internal:80",), True),
        ("https://bridge.internal/x", ("bridge.internal:80",), False),
        ("https://Bridge.Internal/x", ("bridge.internal:443",), True),
        ("http://a@b.example:8646/x", ("a:8646", "a"), False),
        ("http://other/x", ("bad:port", "[", ""), False),
    ],
)
def test_only_bridges_that_are_allowed_are_called_back(
    url: str, callbacks: tuple[str, ...], allowed: bool
) -> None:
    if allowed:
        require_allowed(url, callbacks)
    else:
        with pytest.raises(CallbackRefusedError):
            require_allowed(url, callbacks)


def test_callbacks_are_a_list_or_comma_separated() -> None:
    for value in (["a", "b:1"], "a, b:1,"):
        assert PluginSettings.from_extra({"callbacks": value}, {}).callbacks == ("a", "b:1")
    env = {"MOLECULE_A2A_PLATFORM_CALLBACKS": "c"}
    assert PluginSettings.from_extra({}, env).callbacks == ("c",)
    for wrong in ({"a": 1}, [1], 7):
        with pytest.raises(ValueError, match="callbacks"):
            PluginSettings.from_extra({"callbacks": wrong}, {})
