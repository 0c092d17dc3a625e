"""The features table is the one source: docs, card and transports agree with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from molecule_hermes.config import Settings
from molecule_hermes.protocol.card import build_card
from molecule_hermes.transports.chat.transport import ChatTransport
from molecule_hermes.transports.plugin.transport import PluginTransport
from molecule_hermes.turns.features import Feature, TransportName, features_of, features_table

DOCS = Path(__file__).parents[2] / "docs" / "features.md"


def test_the_docs_hold_the_table() -> None:
    table = DOCS.read_text().split("<!-- features -->\n")[1].split("<!-- /features -->")[0]
    assert table.strip() == features_table().strip()


def test_each_transport_has_the_features_of_its_column() -> None:
    assert PluginTransport.features == features_of("plugin") == frozenset(Feature)
    assert ChatTransport.features == features_of("chat")
    assert Feature.APPROVALS not in ChatTransport.features


@pytest.mark.parametrize(("transport", "files"), [("plugin", True), ("chat", False)])
def test_the_card_advertises_only_what_the_transport_supports(
    settings: Callable[..., Settings], transport: TransportName, files: bool
) -> None:
    card = build_card(settings(), "http://127.0.0.1", features_of(transport))
    assert "image/png" in card.default_input_modes
    assert ("application/octet-stream" in card.default_input_modes) is files
    assert ("application/octet-stream" in card.default_output_modes) is files
    assert ("approval" in card.skills[1].description) is files


def test_the_card_promises_no_question_that_the_operator_forbids(
    settings: Callable[..., Settings],
) -> None:
    card = build_card(settings(APPROVALS="deny"), "http://127.0.0.1", features_of("plugin"))
    assert "approval" not in card.skills[1].description
