"""The bridge's settings: the only reader of its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)

from molecule_hermes.errors import ConfigError
from molecule_hermes.net.urls import base_url, host_in_url, parse_public_url
from molecule_hermes.text import is_loopback, redact
from molecule_hermes.wire import MAX_ATTACHMENTS, MAX_FILE_BYTES

__all__ = [
    "Settings",
    "http_url",
    "secret_variables",
    "settings_table",
    "unknown_variables",
]

PREFIX = "MOLECULE_HERMES_"
API_PORT = 8642


def http_url(value: object) -> str:
    """The URL without a slash at its end; raises `ValueError`."""
    text = str(value).rstrip("/")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not a URL")
    _ = parts.port
    return text


_TOKEN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._@-]{0,63}):(\S{16,})")


def _peer_tokens(value: object) -> object:
    if not isinstance(value, str):
        return value
    tokens: dict[str, str] = {}
    for entry in filter(None, (e.strip() for e in value.split(","))):
        found = _TOKEN.fullmatch(entry)
        if not found or found[1] in tokens or found[2] in tokens.values():
            raise ValueError("bad entry")
        tokens[found[1]] = found[2]
    return tokens


def _store(value: object) -> object:
    """A secret, because a database's URL holds a password."""
    if not isinstance(value, str) or value in ("sqlite", "memory"):
        return value
    scheme, _, rest = value.partition("://")
    if scheme not in ("postgres", "postgresql", "postgresql+asyncpg") or not rest:
        raise ValueError("no store")
    return f"postgresql+asyncpg://{rest}"


_HOST = re.compile(
    r"([\w.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?|[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*", re.I
)


def _hosts(value: object) -> object:
    if not isinstance(value, str):
        return value
    hosts = tuple(filter(None, (entry.strip() for entry in value.split(","))))
    if not all(_HOST.fullmatch(host) for host in hosts):
        raise ValueError("bad entry")
    return hosts


Url = Annotated[str, BeforeValidator(http_url)]
PublicUrl = Annotated[str, BeforeValidator(parse_public_url)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=100_000)]


def _own(name: str, default: Any, takes: str, **more: Any) -> Any:
    return Field(default, alias=PREFIX + name, description=takes, **more)


def _known(name: str, default: Any, takes: str, **more: Any) -> Any:
    return Field(default, alias=name, description=takes, **more)


def _default_state_dir() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / (
        "molecule-hermes"
    )


class Settings(BaseModel):
    """Every field's description says what its variable takes; the README's table is made of it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str = _own("HOST", "127.0.0.1", "an address to listen on")
    port: Port = _own("PORT", 8000, "a port number, 0 to 65535; 0 picks a free one")
    public_url: PublicUrl | None = _own(
        "PUBLIC_URL",
        None,
        "the URL that peers call, if it is not HOST:PORT: http:// or https://, a host, at most a "
        "path of letters, digits, dots and hyphens; not the card's URL, and no other path that the "
        "bridge serves itself",
    )
    state_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=_default_state_dir,
        alias="MOLECULE_HERMES_STATE_DIR",
        description="a folder for what must survive a restart",
    )
    store: Annotated[SecretStr, BeforeValidator(_store)] = _own(
        "STORE",
        SecretStr("sqlite"),
        "sqlite (a file in STATE_DIR), memory, or postgresql://user:password@host/name",
    )
    checkpoint: Annotated[float, Field(ge=0.05, le=3600)] = _own(
        "CHECKPOINT",
        1,
        "seconds after which streamed text is stored, 0.05 to 3600; states are at once",
    )
    keep_days: Annotated[float, Field(gt=0, le=36_500)] = _own(
        "KEEP_DAYS", 30, "days that a task is kept after its end, up to 36500"
    )
    keep_tasks: Annotated[int, Field(ge=0)] = _own(
        "KEEP_TASKS", 0, "how many ended tasks are kept at most; 0: as many as KEEP_DAYS keeps"
    )
    max_stored_bytes_of_peer: Annotated[int, Field(ge=0, le=2**50)] = _own(
        "MAX_STORED_BYTES_OF_PEER",
        4 * 2**30,
        "bytes of stored tasks of one peer, 0 to 1125899906842624; then its turns are refused as "
        "`quota`; 0: no limit",
    )
    peer_tokens: Annotated[dict[str, SecretStr], BeforeValidator(_peer_tokens)] = _own(
        "PEER_TOKENS",
        {},
        "name:token,… — peers that may call, each name and token once, tokens of 16 characters or "
        "more",
    )
    allow_anonymous: bool = _own(
        "ALLOW_ANONYMOUS", False, "true or false: listen beyond loopback without peer tokens"
    )
    shared_memory: bool = _own(
        "SHARED_MEMORY",
        False,
        "true or false: with several peer tokens, let their agents share memory, session search "
        "and cron jobs, which `up` else switches off",
    )
    name: str = _own("NAME", "Hermes", "the agent's name on its card")
    description: str = _own(
        "DESCRIPTION",
        "The Hermes agent: conversations with memory, skills and tools.",
        "the agent's description on its card",
    )
    model: str = _own("MODEL", "hermes-agent", "the model name passed on to Hermes")
    system_prompt: str = _own("SYSTEM_PROMPT", "", "a system prompt passed on to Hermes")
    turn_timeout: Seconds = _own(
        "TURN_TIMEOUT", 600, "seconds a turn may take, waiting in line included; up to 86400"
    )
    approvals: Literal["ask", "deny"] = _own(
        "APPROVALS", "ask", "ask (the peer approves dangerous commands) or deny (nobody does)"
    )
    question_timeout: Seconds = _own(
        "QUESTION_TIMEOUT",
        300,
        "seconds that a peer has to answer, up to 86400; then a command is denied, or the agent "
        "decides itself",
    )
    drain_timeout: Annotated[float, Field(ge=0, le=3600)] = _own(
        "DRAIN_TIMEOUT", 30, "seconds that running turns get to end at shutdown, 0 to 3600"
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = _own(
        "MAX_RESTARTS",
        5,
        "how often `up` starts a Hermes again that ended before it was ready, 0 to 1000; one that "
        "ended later is always started again",
    )
    restart_window: Seconds = _own(
        "RESTART_WINDOW",
        300,
        "seconds, up to 86400; after more failed starts of Hermes in them, `up` gives up",
    )
    max_running: Count = _own("MAX_RUNNING", 10, "turns at once, 1 to 100000")
    max_running_of_peer: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_RUNNING_OF_PEER",
        0,
        "turns of one peer at once, 0 to 100000; 0: with several peer tokens one less than "
        "MAX_RUNNING, so that none takes every place",
    )
    max_questions: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_QUESTIONS",
        64,
        "questions that may wait for peers' answers, 0 to 100000; they take no place of "
        "MAX_RUNNING, and one more is refused at once",
    )
    max_questions_of_peer: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_QUESTIONS_OF_PEER", 16, "questions that may wait for one peer's answers, 0 to 100000"
    )
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_WAITING", 200, "turns that may wait, 0 to 100000; then peers are told `busy`"
    )
    max_waiting_of_peer: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_WAITING_OF_PEER", 100, "turns of one peer that may wait, 0 to 100000"
    )
    max_waiting_bytes: Annotated[int, Field(ge=0, le=2**40)] = _own(
        "MAX_WAITING_BYTES",
        64 * 2**20,
        "bytes of text and files of all turns that wait, 0 or more, half of them one peer's at "
        "most; then peers are told `busy`",
    )
    max_events: Count = _own(
        "MAX_EVENTS",
        1024,
        "events that a subscriber may fall behind, 1 to 100000; then its stream is ended",
    )
    retry_window: Annotated[float, Field(ge=0, le=7 * 86_400)] = _own(
        "RETRY_WINDOW",
        3600,
        "seconds, up to 604800, in which a message that is sent again gets its task instead of a "
        "second turn; 0: never",
    )
    max_connections: Annotated[int, Field(ge=0, le=1_000_000)] = _own(
        "MAX_CONNECTIONS",
        0,
        "connections at once, 0 to 1000000; 0: half of the files that the process may open, 10000 "
        "at most; beyond it idle connections are closed, and if there are none, only probes are "
        "answered",
    )
    max_connections_of_address: Annotated[int, Field(ge=0, le=1_000_000)] = _own(
        "MAX_CONNECTIONS_OF_ADDRESS",
        0,
        "connections from one address (IPv6: one /64 network) at once, 0 to 1000000; 0: half of "
        "MAX_CONNECTIONS; a proxy in front is one address",
    )
    max_body: Annotated[int, Field(ge=1024, le=2**31)] = _own(
        "MAX_BODY", 16 * 2**20, "bytes of a request's body, 1024 to 2147483648"
    )
    max_values: Annotated[int, Field(ge=100, le=10_000_000)] = _own(
        "MAX_VALUES",
        5000,
        "JSON values in a request's body, 100 to 10000000; each holds everybody up for some 40 µs",
    )
    max_parts: Count = _own("MAX_PARTS", 1000, "parts of a message, 1 to 100000")
    max_files: Annotated[int, Field(ge=0, le=MAX_ATTACHMENTS)] = _own(
        "MAX_FILES", MAX_ATTACHMENTS, f"files and data parts of a message, 0 to {MAX_ATTACHMENTS}"
    )
    max_file: Annotated[int, Field(ge=1, le=MAX_FILE_BYTES)] = _own(
        "MAX_FILE", MAX_FILE_BYTES, f"bytes of a file in a message, 1 to {MAX_FILE_BYTES}"
    )
    file_hosts: Annotated[tuple[str, ...], BeforeValidator(_hosts)] = _own(
        "FILE_HOSTS",
        (),
        "host,host:port,… — where files may be fetched from although it is not public",
    )
    push_hosts: Annotated[tuple[str, ...], BeforeValidator(_hosts)] = _own(
        "PUSH_HOSTS",
        (),
        "host,host:port,… — where push notifications may go although it is not public",
    )
    token: SecretStr | None = _own("TOKEN", None, "a peer's token, for `send`, `card` and `doctor`")
    compat_v03: bool = _own("COMPAT_V03", True, "true or false: serve A2A 0.3 clients too")
    log_level: Literal["debug", "info", "warning", "error"] = _own(
        "LOG_LEVEL", "info", "debug, info, warning or error"
    )

    platform_enabled: bool | None = _known(
        "MOLECULE_A2A_PLATFORM_ENABLED",
        None,
        "true (reach Hermes through the plugin) or false (through chat completions); unset, `up` "
        "takes true and `serve` false",
    )
    platform_host: str = _known(
        "MOLECULE_A2A_PLATFORM_HOST", "127.0.0.1", "an address: where the plugin listens"
    )
    platform_port: Annotated[int, Field(ge=1, le=65535)] = _known(
        "MOLECULE_A2A_PLATFORM_PORT", 8645, "a port number, 1 to 65535: where the plugin listens"
    )
    callback_host: str = _known(
        "MOLECULE_A2A_CALLBACK_HOST", "127.0.0.1", "an address: where the plugin calls back"
    )
    callback_port: Port = _known(
        "MOLECULE_A2A_CALLBACK_PORT",
        8646,
        "a port number, 0 to 65535: where the plugin calls back; 0 picks a free one",
    )
    platform_callbacks: Annotated[tuple[str, ...], BeforeValidator(_hosts)] = _known(
        "MOLECULE_A2A_PLATFORM_CALLBACKS",
        (),
        "host,host:port,… — bridges that the plugin may call back, besides the one that started "
        "its Hermes; none of either: any on loopback",
    )
    shared_secret: SecretStr | None = _known(
        "MOLECULE_A2A_PLATFORM_SHARED_SECRET",
        None,
        "a secret that bridge and plugin share; `up` makes one at each start",
    )
    hermes_api_base: Url = _known(
        "HERMES_API_BASE", f"http://127.0.0.1:{API_PORT}/v1", "a URL: where Hermes's API server is"
    )
    api_server_key: Annotated[SecretStr, Field(min_length=16)] | None = _known(
        "API_SERVER_KEY",
        None,
        "Hermes's API key, 16 characters or more (with a shorter one Hermes never opens its port)",
    )
    smoke_mode: bool = _known(
        "MOLECULE_SMOKE_MODE",
        False,
        "true or false: start without Hermes; the card and /livez answer, and it is never ready",
    )
    hermes_home: Path | None = _known(
        "HERMES_HOME", None, "Hermes's folder; `up` keeps one below STATE_DIR by default"
    )
    ready_budget: Seconds = _known(
        "HERMES_GATEWAY_READY_BUDGET_SEC",
        120,
        "seconds that Hermes gets to become ready, up to 86400",
    )
    inference_model: str = _known("HERMES_INFERENCE_MODEL", "", "the model that Hermes uses")
    inference_provider: str = _known("HERMES_INFERENCE_PROVIDER", "", "the provider Hermes uses")
    custom_base_url: Url | None = _known(
        "HERMES_CUSTOM_BASE_URL", None, "the URL of an OpenAI-compatible model server"
    )
    custom_api_key: SecretStr | None = _known(
        "HERMES_CUSTOM_API_KEY", None, "the key for HERMES_CUSTOM_BASE_URL"
    )
    custom_api_mode: str = _known(
        "HERMES_CUSTOM_API_MODE",
        "chat_completions",
        "chat_completions, codex_responses or anthropic_messages",
        pattern="^(chat_completions|codex_responses|anthropic_messages)$",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, **overrides: Any) -> Self:
        """Reads the settings; an empty variable counts as unset. Raises `ConfigError`."""
        values: dict[str, Any] = {name: value for name, value in environ.items() if value.strip()}
        aliases = {name: str(field.alias) for name, field in cls.model_fields.items()}
        values |= {aliases[name]: v for name, v in overrides.items() if v is not None}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _explain(cls, error) from None

    def require_safe_exposure(self) -> None:
        """Without tokens anybody who reaches the port commands the agent and its tools."""
        if not self.peer_tokens and not self.allow_anonymous and not is_loopback(self.host):
            raise ConfigError(
                f"MOLECULE_HERMES_HOST={self.host!r} would let anybody on the network command "
                "this agent",
                "set MOLECULE_HERMES_PEER_TOKENS=name:token, or on a private network "
                "MOLECULE_HERMES_ALLOW_ANONYMOUS=true",
            )

    @property
    def local_url(self) -> str:
        """Where a client on this machine reaches the bridge."""
        host = self.host.strip("[]")
        everywhere = host in ("0.0.0.0", "::")  # noqa: S104 - compared only
        return base_url("127.0.0.1" if everywhere else host, self.port)

    @property
    def platform_url(self) -> str:
        return base_url(self.platform_host, self.platform_port)

    @property
    def callback_address(self) -> str:
        """`host:port` of the callbacks, or the host alone where the port is not known before."""
        host = host_in_url(self.callback_host)
        return f"{host}:{self.callback_port}" if self.callback_port else host

    @property
    def has_several_peers(self) -> bool:
        return len(self.peer_tokens) > 1

    @property
    def home(self) -> Path:
        """Hermes's folder: the user's, or our own below STATE_DIR."""
        return (self.hermes_home or self.state_dir / "hermes").expanduser().absolute()

    @property
    def owns_home(self) -> bool:
        """Whether Hermes's folder is our own; the image names it in HERMES_HOME all the same."""
        return self.home == (self.state_dir / "hermes").absolute()


def _explain(settings: type[Settings], error: ValidationError) -> ConfigError:
    """One line that names the variable, the value and what it takes."""
    first = error.errors()[0]
    variable = str(first["loc"][0])
    field = next(f for f in settings.model_fields.values() if f.alias == variable)
    secret = "SecretStr" in str(field.annotation)
    value = "(a secret)" if secret else redact(repr(first.get("input")))
    return ConfigError(f"{variable}={value} is wrong: it takes {field.description}")


def secret_variables() -> frozenset[str]:
    """The variables of ours that hold secrets."""
    fields = Settings.model_fields.values()
    return frozenset(str(f.alias) for f in fields if "SecretStr" in str(f.annotation))


def unknown_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables with our prefix that mean nothing, each with the nearest that does."""
    known = [str(field.alias) for field in Settings.model_fields.values()]
    unknown = [name for name in environ if name.startswith(PREFIX) and name not in known]
    return {name: (get_close_matches(name, known, 1) or [""])[0] for name in sorted(unknown)}


def settings_table() -> str:
    """The table in the README, from the fields themselves."""
    rows = ["| variable | default | takes |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        shown = "" if field.default in (None, "", {}, ()) else str(field.default)
        if name == "state_dir":
            shown = "~/.local/state/molecule-hermes"
        elif name == "store":
            shown = "sqlite"
        elif isinstance(field.default, bool):
            shown = shown.lower()
        default = f"`{shown}`" if shown and not field.is_required() else "–"
        rows.append(f"| `{field.alias}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"
