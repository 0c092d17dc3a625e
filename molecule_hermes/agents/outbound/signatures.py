"""The signatures of other agents' cards.

A key that the configuration names decides alone: a card without a valid signature of it is refused.
Without one, a signed card is checked with the keys that it points to, if they are at the agent's
own URL. That shows that it was not changed on its way, and not whose it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx
from a2a.types import AgentCard
from a2a.utils.signing import SignatureVerificationError, create_signature_verifier
from jwt import PyJWK
from jwt.exceptions import PyJWTError
from jwt.utils import base64url_decode

from molecule_hermes.agents.outbound.failures import BadAgent
from molecule_hermes.config import PeerConfig

__all__ = ["require_signature"]

_ALGORITHMS = ["ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "EdDSA"]
"""None of them uses a shared secret: what everybody may know must not sign."""
_MAX_KEYS = 2**16
_MAX_SIGNATURES = 8
_TIMEOUT = 10.0

_Key: TypeAlias = PyJWK | str | bytes
_Keys: TypeAlias = Callable[[str | None, str | None], _Key]


async def require_signature(peer: PeerConfig, card: AgentCard, http: httpx.AsyncClient) -> None:
    """Raises `BadAgent` unless the card is signed as it should be."""
    if len(card.signatures) > _MAX_SIGNATURES:
        raise _refused(peer, f"has more than {_MAX_SIGNATURES} signatures")
    if peer.card_keys:
        keys = _configured(peer.card_keys)
    elif card.signatures:
        keys = await _published(peer, card, http)
    else:
        return
    try:
        create_signature_verifier(keys, _ALGORITHMS)(card)
    except SignatureVerificationError as error:
        raise _refused(peer, "has no valid signature") from error
    except Exception as error:  # PyJWT raises errors of any kind for a key of another algorithm
        raise _refused(peer, "has a signature that cannot be checked") from error


def _configured(data: bytes) -> _Keys:
    """One key in PEM, or a JSON Web Key Set."""
    try:
        known = _key_set(json.loads(data))
    except ValueError:
        return lambda kid, jku: data
    return lambda kid, jku: _chosen(known, kid)


async def _published(peer: PeerConfig, card: AgentCard, http: httpx.AsyncClient) -> _Keys:
    known: dict[str, Mapping[str, PyJWK]] = {}
    for signature in card.signatures:
        jku = _header(signature.protected).get("jku")
        if isinstance(jku, str) and jku not in known and _is_below(jku, peer.url):
            known[jku] = await _fetch(jku, http)
    if not known:
        raise _refused(peer, "is signed with a key that is not known")
    return lambda kid, jku: _chosen(known.get(jku or "", {}), kid)


async def _fetch(url: str, http: httpx.AsyncClient) -> Mapping[str, PyJWK]:
    timeout = httpx.Timeout(_TIMEOUT, connect=5.0).as_dict()
    response = await http.get(url, extensions={"max_bytes": _MAX_KEYS, "timeout": timeout})
    try:
        return _key_set(response.json()) if response.status_code == 200 else {}
    except (ValueError, RecursionError):
        return {}


def _key_set(found: Any) -> Mapping[str, PyJWK]:
    """The keys by their ids; those that cannot be used are left out. Raises `ValueError`."""
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise ValueError("not a JSON Web Key Set")  # noqa: TRY004 - as for what is not JSON
    known = {}
    for key in keys[:64]:
        try:
            known[str(key.get("kid", ""))] = PyJWK.from_dict(key)
        except (PyJWTError, AttributeError, TypeError, ValueError):
            continue
    return known


def _chosen(known: Mapping[str, PyJWK], kid: str | None) -> _Key:
    key = known.get(kid or "")
    if key is None:
        raise PyJWTError("no such key")
    return key


def _header(protected: str) -> Mapping[str, Any]:
    try:
        found = json.loads(base64url_decode(protected))
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_below(url: str, base: str) -> bool:
    try:
        there, here = urlsplit(url), urlsplit(base)
    except ValueError:
        return False
    return (there.scheme, there.netloc.lower()) == (here.scheme, here.netloc.lower())


def _refused(peer: PeerConfig, what: str) -> BadAgent:
    return BadAgent(
        f"the card of the agent {peer.name!r} {what}",
        hint=f"go on without it; the operator must check the card, and card_key_file of "
        f"peers.{peer.name}",
    )
