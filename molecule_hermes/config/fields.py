"""The types of settings, and how the text of a variable becomes a value."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from molecule_hermes.net.urls import http_url, parse_public_url

__all__ = [
    "DAY",
    "MODEL_NAME",
    "PEER_NAME",
    "PREFIX",
    "READY_BUDGET",
    "Count",
    "Port",
    "PublicUrl",
    "Seconds",
    "Url",
    "absolute_path",
    "default_state_dir",
    "known",
    "lower_case",
    "own",
    "parse_models",
    "parse_paths",
    "parse_peer_tokens",
    "parse_ready_budget",
    "parse_store",
]

PREFIX = "MOLECULE_HERMES_"
DAY = 86_400
READY_BUDGET = 120

logger = logging.getLogger(__name__)

PEER_NAME = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
_TOKEN = re.compile(rf"({PEER_NAME}):(\S{{16,}})")


def parse_peer_tokens(value: object) -> object:
    if not isinstance(value, str):
        return value
    tokens: dict[str, str] = {}
    for entry in filter(None, (e.strip() for e in value.split(","))):
        found = _TOKEN.fullmatch(entry)
        if not found or found[1] in tokens or found[2] in tokens.values():
            raise ValueError("bad entry")
        tokens[found[1]] = found[2]
    return tokens


def parse_store(value: object) -> object:
    """Normalises the URL of a database. The setting is a secret because of the password in it."""
    if not isinstance(value, str) or value in ("sqlite", "memory"):
        return value
    scheme, _, rest = value.partition("://")
    if scheme not in ("postgres", "postgresql", "postgresql+asyncpg") or not rest:
        raise ValueError("not a store")
    return f"postgresql+asyncpg://{rest}"


def parse_ready_budget(value: object) -> object:
    """A bad value must not stop a container whose platform sets it; the default replaces it."""
    try:
        if str(value).isascii() and 0 < float(str(value)) <= DAY:
            return value
    except ValueError:
        pass
    logger.warning(
        "HERMES_GATEWAY_READY_BUDGET_SEC=%r is not a number of seconds from 0 to %d; using %d",
        value,
        DAY,
        READY_BUDGET,
    )
    return READY_BUDGET


Url = Annotated[str, BeforeValidator(http_url)]
PublicUrl = Annotated[str, BeforeValidator(parse_public_url)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=DAY)]
Count = Annotated[int, Field(ge=1, le=100_000)]


def own(name: str, default: Any, takes: str, **more: Any) -> Any:
    """A variable with our prefix."""
    return Field(default, alias=PREFIX + name, description=takes, **more)


def known(name: str, default: Any, takes: str, **more: Any) -> Any:
    """A variable whose name others have chosen."""
    return Field(default, alias=name, description=takes, **more)


def absolute_path(path: Path) -> Path:
    return path.expanduser().absolute()


def parse_paths(value: object) -> object:
    """Absolute paths, separated as in PATH."""
    if not isinstance(value, str):
        return value
    paths = [Path(each).expanduser() for each in value.split(os.pathsep) if each.strip()]
    if not all(path.is_absolute() for path in paths):
        raise ValueError("not absolute")
    return tuple(paths)


def default_state_dir() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / (
        "molecule-hermes"
    )


# Not `$`: Hermes expands variables in its config.yaml, and the model's name is shown to peers.
MODEL_NAME = r"^([A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199})?$"


def parse_models(value: object) -> object:
    if not isinstance(value, str):
        return value
    names = tuple(filter(None, (name.strip() for name in value.split(","))))
    if not all(re.match(MODEL_NAME, name) for name in names):
        raise ValueError("bad name")
    return names


def lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value
