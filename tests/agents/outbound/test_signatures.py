"""Cards of other agents that are signed, or should be."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from a2a.types import AgentCard
from a2a.utils.signing import create_agent_card_signer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf import json_format

from molecule_hermes.config import PeerConfig
from tests.support.outbound import asking
from tests.support.registry import asking_with, registry
from tests.support.sdk_agent import SdkAgent, sdk_agent

OURS, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
TOKEN = "unused-0123456789"


def private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def key_set(key: ec.EllipticCurvePrivateKey) -> bytes:
    jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    return json.dumps({"keys": [{}, {**jwk, "kid": "k", "alg": "ES256"}]}).encode()


def sign(card: AgentCard, key: ec.EllipticCurvePrivateKey, jku: str | None = None) -> None:
    header: Any = {"kid": "k", "alg": "ES256", "typ": "JOSE"} | ({"jku": jku} if jku else {})
    create_agent_card_signer(private(key).decode(), header)(card)


async def listed(agent: SdkAgent, **more: Any) -> dict[str, Any]:
    async with asking(PeerConfig("other", url=agent.url, **more)) as turn:
        (found,) = (await turn.call("list")).result["peers"]  # type: ignore[misc]
        return dict(found)


@pytest.mark.parametrize("keys", [public(OURS), key_set(OURS)], ids=["pem", "jwks"])
async def test_a_card_that_is_signed_with_the_configured_key_is_taken(keys: bytes) -> None:
    async with sdk_agent() as agent:
        sign(agent.card, OTHER)
        sign(agent.card, OURS)
        assert "from_outside" in await listed(agent, card_keys=keys)


@pytest.mark.parametrize("keys", [public(OURS), key_set(OURS), b"x", b"{}"])
async def test_any_other_card_is_refused(keys: bytes) -> None:
    async with sdk_agent() as agent:
        unsigned = await listed(agent, card_keys=keys)
        sign(agent.card, OTHER)
        forged = await listed(agent, card_keys=keys)
    assert unsigned["error"]["kind"] == forged["error"]["kind"] == "unreachable"
    assert "card_key_file" in forged["error"]["hint"]


async def test_a_card_that_was_changed_after_it_was_signed_is_refused() -> None:
    async with sdk_agent() as agent:
        sign(agent.card, OURS)
        assert "from_outside" in await listed(agent, card_keys=public(OURS))
        agent.card.description = "Something else."
        assert (
            "no valid signature"
            in (await listed(agent, card_keys=public(OURS)))["error"]["message"]
        )


async def test_the_public_key_is_no_shared_secret() -> None:
    """An attacker who knows the public key signs with it as if it were one."""
    async with sdk_agent() as agent:
        payload = json_format.MessageToDict(agent.card)
        signer = jwt.api_jws.PyJWS(algorithms=["HS256"])
        token = signer.encode(json.dumps(payload).encode(), "0" * 64, "HS256", {"kid": "k"})
        protected, _, signature = token.split(".")
        agent.card.signatures.add(protected=protected, signature=signature)
        assert "error" in await listed(agent, card_keys=public(OURS))


async def test_without_a_configured_key_the_published_one_counts_if_it_is_the_agents_own() -> None:
    async with sdk_agent() as agent:
        agent.keys = key_set(OURS)
        sign(agent.card, OURS, f"{agent.url}/keys")
        assert "from_outside" in await listed(agent)
        agent.card.description = "Something else."
        assert "no valid signature" in (await listed(agent))["error"]["message"]


@pytest.mark.parametrize("jku", [None, "http://127.0.0.1:9/keys", "file:///etc/passwd", "http://["])
async def test_a_signed_card_whose_key_is_not_known_is_refused(jku: str | None) -> None:
    async with sdk_agent() as agent:
        sign(agent.card, OURS, jku)
        assert "key that is not known" in (await listed(agent))["error"]["message"]


async def test_signatures_that_cannot_be_read_are_refused() -> None:
    for protected in ("", "x", "e30", "bnVsbA", "W10", "\u00e9"):
        async with sdk_agent() as agent:
            agent.card.signatures.add(protected=protected, signature="x")
            assert (await listed(agent))["error"]["kind"] == "unreachable"
            assert (await listed(agent, card_keys=public(OURS)))["error"]["kind"] == "unreachable"


@pytest.mark.parametrize("forged", [False, True])
async def test_a_signed_card_of_an_agent_of_the_registry_is_checked_as_well(forged: bool) -> None:
    async with sdk_agent() as agent, registry({"name": "other", "url": agent.url}) as server:
        agent.keys = key_set(OURS)
        sign(agent.card, OTHER if forged else OURS, f"{agent.url}/keys")
        async with asking_with(server, REGISTRY_HOSTS="127.0.0.1") as turn:
            (found,) = (await turn.call("list")).result["peers"]  # type: ignore[misc]
    assert ("no valid signature" in found.get("error", {}).get("message", "")) is forged
