"""The adapter's deliveries, called as Hermes calls them. The real gateway is in test_gateway.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gateway.config import Platform

from molecule_hermes.plugin import adapter as module
from molecule_hermes.plugin.adapter import MoleculeAdapter
from molecule_hermes.plugin.dispatcher import Dispatcher
from molecule_hermes.plugin.hooks import Hooks
from molecule_hermes.plugin.journal import Journal
from molecule_hermes.plugin.ledger import Ledger
from molecule_hermes.plugin.tools.peers import PeerTools
from molecule_hermes.wire import Attachment, Callback, File, Inbound, Notice


class Sent:
    """In the place of the outbox: keeps what would be posted."""

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []

    def put(self, journal: Journal, callback: Callback) -> None:
        self.callbacks.append(callback)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("TERMINAL_CWD", str(work))
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "hermes"))
    return work


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def adapter(sent: Sent, work: Path, monkeypatch: pytest.MonkeyPatch) -> MoleculeAdapter:
    """With one turn that runs, in the chat `c`."""
    # Hermes knows the platform's own name only once the plugin is registered.
    monkeypatch.setattr(module, "Platform", lambda _: Platform.API_SERVER)
    made = MoleculeAdapter(
        SimpleNamespace(extra={}, enabled=True), Hooks(), PeerTools(lambda given: None)
    )
    ledger = Ledger()
    made._dispatcher = Dispatcher(made, ledger, sent)  # type: ignore[arg-type]
    ledger.accept(Inbound("c", "p", "m", "http://127.0.0.1:1/", "hi"))
    assert ledger.begin("c")
    return made


@pytest.mark.parametrize(
    ("method", "name", "media_type"),
    [
        ("send_document", "a.pdf", "application/pdf"),
        ("send_image_file", "a.png", "image/png"),
        ("send_voice", "a.ogg", "audio/ogg"),
        ("send_video", "a.mp4", "video/mp4"),
    ],
)
async def test_a_local_file_becomes_a_file_with_its_bytes(
    adapter: Any, sent: Sent, work: Path, method: str, name: str, media_type: str
) -> None:
    (work / name).write_bytes(b"\x00\xff")
    result = await getattr(adapter, method)("c", str(work / name), caption="see", metadata={})
    assert result.success
    (callback,) = sent.callbacks
    assert (callback.reply_to, callback.content) == ("m", "see")
    assert callback.body == File(name, media_type, b"\x00\xff")


async def test_the_peers_own_file_comes_back_only_when_it_changed(
    adapter: Any, sent: Sent, work: Path
) -> None:
    (path,) = adapter._kept.save("c", [Attachment("a.png", "image/png", b"old")])
    (work / "copy.png").write_bytes(b"old")
    for known in (path, work / "copy.png"):
        assert (await adapter.send_image_file("c", str(known))).success
    assert sent.callbacks == []
    path.write_bytes(b"new")
    await adapter.send_image_file("c", str(path))
    assert [c.body for c in sent.callbacks] == [File("a.png", "image/png", b"new")]


async def test_a_file_that_another_peer_sent_is_not_delivered(adapter: Any, sent: Sent) -> None:
    (path,) = adapter._kept.save("another", [Attachment("a.png", "image/png", b"x")])
    result = await adapter.send_image_file("c", str(path))
    assert (result.success, result.error) == (False, "the file a.png is not available")
    assert [type(c.body) for c in sent.callbacks] == [Notice]


async def test_the_content_of_another_peers_file_does_not_hold_back_an_own_one(
    adapter: Any, sent: Sent, work: Path
) -> None:
    adapter._kept.save("another", [Attachment("a.png", "image/png", b"x")])
    (work / "mine.png").write_bytes(b"x")
    await adapter.send_image_file("c", str(work / "mine.png"))
    assert [c.body for c in sent.callbacks] == [File("mine.png", "image/png", b"x")]


@pytest.mark.parametrize("method", ["send_image", "send_animation"])
async def test_an_image_with_a_url_keeps_it(adapter: Any, sent: Sent, method: str) -> None:
    result = await getattr(adapter, method)("c", "https://x.example/a/cat.gif?s=1", caption=None)
    assert result.success
    (callback,) = sent.callbacks
    assert callback.body == File("cat.gif", "image/gif", url="https://x.example/a/cat.gif?s=1")


async def test_a_file_has_the_name_that_the_agent_gave_it(
    adapter: Any, sent: Sent, work: Path
) -> None:
    (work / "x1.bin").write_bytes(b"x")
    await adapter.send_document("c", str(work / "x1.bin"), file_name="../Report 1.csv")
    (callback,) = sent.callbacks
    assert callback.body == File("Report 1.csv", "text/csv", b"x")


@pytest.mark.parametrize("method", ["send_document", "send_image_file", "send_voice", "send_video"])
async def test_a_file_that_is_not_delivered_is_reported_and_remembered(
    adapter: Any, sent: Sent, tmp_path: Path, method: str
) -> None:
    (tmp_path / "outside.txt").write_text("private")
    result = await getattr(adapter, method)("c", str(tmp_path / "outside.txt"))
    assert (result.success, result.error) == (False, "the file outside.txt is not available")
    (callback,) = sent.callbacks
    assert isinstance(callback.body, Notice)
    assert callback.content == result.error
    assert adapter._dispatcher.find("m").refused == [result.error]


async def test_an_invalid_image_address_is_reported(adapter: Any, sent: Sent) -> None:
    result = await adapter.send_image("c", "https://x.example/" + "x" * 3000 + "/a.png")
    assert not result.success
    (callback,) = sent.callbacks
    assert callback.content.startswith("the file a.png was not delivered")


async def test_a_file_for_an_unknown_chat_is_not_sent(adapter: Any, sent: Sent, work: Path) -> None:
    (work / "a.pdf").write_bytes(b"x")
    assert not (await adapter.send_document("another", str(work / "a.pdf"))).success
    assert sent.callbacks == []
