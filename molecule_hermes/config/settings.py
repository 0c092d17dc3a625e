"""The settings from the environment."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

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
from molecule_hermes.net.urls import (
    base_url,
    host_in_url,
    http_url,
    parse_hosts,
    parse_public_url,
)
from molecule_hermes.text import is_loopback, redact
from molecule_hermes.wire import MAX_ATTACHMENTS, MAX_FILE_BYTES, MAX_SYSTEM_PROMPT

__all__ = [
    "Settings",
    "secret_variables",
    "settings_table",
    "unknown_variables",
]

PREFIX = "MOLECULE_HERMES_"
API_PORT = 8642
_DAY = 86_400
_READY_BUDGET = 120
_OLDER_NAMES = {"HERMES_DEFAULT_MODEL": "HERMES_INFERENCE_MODEL"}

logger = logging.getLogger(__name__)

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
    """Normalises the URL of a database. The setting is a secret because of the password in it."""
    if not isinstance(value, str) or value in ("sqlite", "memory"):
        return value
    scheme, _, rest = value.partition("://")
    if scheme not in ("postgres", "postgresql", "postgresql+asyncpg") or not rest:
        raise ValueError("not a store")
    return f"postgresql+asyncpg://{rest}"


def _ready_budget(value: object) -> object:
    """A bad value must not stop a container whose platform sets it; the default replaces it."""
    try:
        if str(value).isascii() and 0 < float(str(value)) <= _DAY:
            return value
    except ValueError:
        pass
    logger.warning(
        "HERMES_GATEWAY_READY_BUDGET_SEC=%r is not a number of seconds from 0 to %d; using %d",
        value,
        _DAY,
        _READY_BUDGET,
    )
    return _READY_BUDGET


Url = Annotated[str, BeforeValidator(http_url)]
PublicUrl = Annotated[str, BeforeValidator(parse_public_url)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=_DAY)]
Count = Annotated[int, Field(ge=1, le=100_000)]


def _own(name: str, default: Any, takes: str, **more: Any) -> Any:
    return Field(default, alias=PREFIX + name, description=takes, **more)


def _known(name: str, default: Any, takes: str, **more: Any) -> Any:
    return Field(default, alias=name, description=takes, **more)


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _paths(value: object) -> object:
    """Absolute paths, separated as in PATH."""
    if not isinstance(value, str):
        return value
    paths = [Path(each).expanduser() for each in value.split(os.pathsep) if each.strip()]
    if not all(path.is_absolute() for path in paths):
        raise ValueError("not absolute")
    return tuple(paths)


def _default_state_dir() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / (
        "molecule-hermes"
    )


# Not `$`: Hermes expands variables in its config.yaml, and the model's name is shown to peers.
_MODEL_NAME = r"^([A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199})?$"


def _models(value: object) -> object:
    if not isinstance(value, str):
        return value
    names = tuple(filter(None, (name.strip() for name in value.split(","))))
    if not all(re.match(_MODEL_NAME, name) for name in names):
        raise ValueError("bad name")
    return names


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


_SHOWN = 200
"""How many characters of an invalid value an error shows."""


class Settings(BaseModel):
    """The settings. Each field's description says what its variable takes, also in the README."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str = _own("HOST", "127.0.0.1", "the address to listen on")
    port: Port = _own("PORT", 8000, "a port number, 0 to 65535; 0 chooses a free port")
    public_url: PublicUrl | None = _own(
        "PUBLIC_URL",
        None,
        "the URL that peers use, if it is not HOST:PORT: http:// or https://, a host, and "
        "optionally a path of letters, digits, dots and hyphens; neither the card's URL nor a"
        " path that the bridge itself serves",
    )
    state_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=_default_state_dir,
        alias="MOLECULE_HERMES_STATE_DIR",
        description="the folder for everything that must survive a restart",
    )
    store: Annotated[SecretStr, BeforeValidator(_store)] = _own(
        "STORE",
        SecretStr("sqlite"),
        "sqlite (a file in STATE_DIR), memory, or postgresql://user:password@host/name",
    )
    checkpoint: Annotated[float, Field(ge=0.05, le=3600)] = _own(
        "CHECKPOINT",
        1,
        "seconds between two writes of streamed text to the store, 0.05 to 3600; status "
        "changes are stored at once",
    )
    keep_days: Annotated[float, Field(gt=0, le=36_500)] = _own(
        "KEEP_DAYS", 30, "days for which an ended task is kept, up to 36500"
    )
    keep_tasks: Annotated[int, Field(ge=0)] = _own(
        "KEEP_TASKS",
        0,
        "the maximum number of ended tasks to keep; 0 means no limit besides KEEP_DAYS",
    )
    max_stored_bytes_of_peer: Annotated[int, Field(ge=0, le=2**50)] = _own(
        "MAX_STORED_BYTES_OF_PEER",
        4 * 2**30,
        "the maximum bytes of one peer's stored tasks, 0 to 1125899906842624; beyond it the "
        "peer's turns are refused as `quota`; 0 means no limit",
    )
    peer_tokens: Annotated[dict[str, SecretStr], BeforeValidator(_peer_tokens)] = _own(
        "PEER_TOKENS",
        {},
        "name:token,… — the peers that may call; names and tokens must be unique, and a token"
        " has at least 16 characters",
    )
    config: Annotated[Path, AfterValidator(_absolute)] | None = _own(
        "CONFIG",
        None,
        "the YAML file that names agents, routes and peers (`docs/agents.md`); if unset, there is "
        "one agent",
    )
    allow_anonymous: bool = _own(
        "ALLOW_ANONYMOUS",
        False,
        "true or false: whether to listen beyond loopback without peer tokens",
    )
    isolation: Literal["shared", "peer"] | None = _own(
        "ISOLATION",
        None,
        "peer (each peer has a Hermes of its own, with its own memory, sessions and files) or "
        "shared (all peers of an agent share one); if unset, peer with several peer tokens, unless "
        "SHARED_MEMORY is true; for `up`",
    )
    max_workers: Annotated[int, Field(ge=1, le=10_000)] = _own(
        "MAX_WORKERS",
        16,
        "the maximum number of Hermes processes that `up` runs at once, 1 to 10000; at the limit, "
        "one without work is stopped for another",
    )
    worker_idle: Annotated[float, Field(gt=0, le=30 * _DAY)] = _own(
        "WORKER_IDLE",
        900,
        "seconds after which a peer's Hermes without work is stopped, up to 2592000; it starts "
        "again with the peer's next message",
    )
    confine: Literal["auto", "require", "off"] = _own(
        "CONFINE",
        "auto",
        "auto (Hermes and its tools see only their own folders and the system's, as far as the "
        "kernel can enforce it), require (`up` does not start without that) or off",
    )
    readable: Annotated[tuple[Path, ...], BeforeValidator(_paths)] = _own(
        "READABLE",
        (),
        "path:path:… — further files and folders that a confined Hermes and its tools may read",
    )
    writable: Annotated[tuple[Path, ...], BeforeValidator(_paths)] = _own(
        "WRITABLE",
        (),
        "path:path:… — further files and folders that a confined Hermes and its tools may read "
        "and write; several workers share them",
    )
    shared_memory: bool = _own(
        "SHARED_MEMORY",
        False,
        "true or false: whether several peers share Hermes's memory, session search and cron "
        "jobs; with false, `up` disables them",
    )
    name: str = _own("NAME", "Hermes", "the agent's name on its card")
    description: str = _own(
        "DESCRIPTION",
        "The Hermes agent: conversations with memory, skills and tools.",
        "the agent's description on its card",
    )
    model: str = _own("MODEL", "hermes-agent", "the model name that is sent to Hermes")
    demo: Literal["auto", "always", "never"] = _own(
        "DEMO",
        "auto",
        "auto (the demo model answers if no model key is set and the bridge is reachable on "
        "loopback only), always (it answers, whatever keys are set) or never",
    )
    models: Annotated[tuple[str, ...], BeforeValidator(_models)] = _own(
        "MODELS",
        (),
        "name,name,… — the models that a message may choose for its turn, as the provider of "
        "Hermes's own model names them; if unset, none",
    )
    system_prompt: Annotated[str, Field(max_length=MAX_SYSTEM_PROMPT)] = _own(
        "SYSTEM_PROMPT", "", f"a system prompt for Hermes, at most {MAX_SYSTEM_PROMPT} characters"
    )
    turn_timeout: Seconds = _own(
        "TURN_TIMEOUT",
        600,
        "the maximum seconds of a turn, including its time in the queue; up to 86400",
    )
    approvals: Literal["ask", "deny"] = _own(
        "APPROVALS",
        "ask",
        "ask (the peer approves dangerous commands) or deny (they are always denied)",
    )
    reply: Literal["task", "message"] = _own(
        "REPLY",
        "task",
        "task (a peer gets a task and follows it) or message (a peer gets one message with the "
        "final answer, and no question ever reaches it)",
    )
    question_timeout: Seconds = _own(
        "QUESTION_TIMEOUT",
        300,
        "seconds that a peer has to answer a question, up to 86400; then a command is denied,"
        " and any other question is left to the agent",
    )
    drain_timeout: Annotated[float, Field(ge=0, le=3600)] = _own(
        "DRAIN_TIMEOUT", 30, "seconds that running turns get to end at shutdown, 0 to 3600"
    )
    keep_worker: bool = _own(
        "KEEP_WORKER",
        False,
        "true or false: whether Hermes and its turns go on when the bridge ends, because something "
        "starts the bridge again; `up` then needs MOLECULE_A2A_PLATFORM_SHARED_SECRET and "
        "API_SERVER_KEY",
    )
    keep_turns: Seconds = _own(
        "KEEP_TURNS",
        3600,
        "seconds for which the plugin keeps an ended turn for a bridge that is restarted, up to "
        "86400; a turn whose end no bridge has is kept longer",
    )
    keep_turns_bytes: Annotated[int, Field(ge=2**20, le=2**40)] = _own(
        "KEEP_TURNS_BYTES",
        64 * 2**20,
        "the maximum bytes of running and ended turns that the plugin keeps for that, 1048576 to "
        "1099511627776",
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = _own(
        "MAX_RESTARTS",
        5,
        "how many times within RESTART_WINDOW `up` restarts a Hermes that ends before it is "
        "ready, 0 to 1000; a Hermes that was ready is always restarted",
    )
    restart_window: Seconds = _own(
        "RESTART_WINDOW",
        300,
        "seconds in which failed starts of Hermes are counted, up to 86400",
    )
    max_running: Count = _own(
        "MAX_RUNNING", 10, "the maximum number of turns that run at once, 1 to 100000"
    )
    max_running_of_peer: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_RUNNING_OF_PEER",
        0,
        "the maximum number of one peer's turns that run at once, 0 to 100000; 0 means no "
        "per-peer limit, or MAX_RUNNING - 1 with several peer tokens",
    )
    max_questions: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_QUESTIONS",
        64,
        "the maximum number of open questions to peers, 0 to 100000; further questions are "
        "denied at once. A turn with an open question does not count for MAX_RUNNING",
    )
    max_questions_of_peer: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_QUESTIONS_OF_PEER", 16, "the maximum number of open questions to one peer, 0 to 100000"
    )
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_WAITING",
        200,
        "the maximum number of queued turns, 0 to 100000; further turns are refused as `busy`",
    )
    max_waiting_of_peer: Annotated[int, Field(ge=0, le=100_000)] = _own(
        "MAX_WAITING_OF_PEER", 100, "the maximum number of one peer's queued turns, 0 to 100000"
    )
    max_waiting_bytes: Annotated[int, Field(ge=0, le=2**40)] = _own(
        "MAX_WAITING_BYTES",
        64 * 2**20,
        "the maximum bytes of text and files in queued turns, 0 or more; one peer may use "
        "half of it; further turns are refused as `busy`",
    )
    max_events: Count = _own(
        "MAX_EVENTS",
        1024,
        "the maximum number of events that a subscriber may lag behind, 1 to 100000; then its"
        " stream ends",
    )
    retry_window: Annotated[float, Field(ge=0, le=7 * 86_400)] = _own(
        "RETRY_WINDOW",
        3600,
        "seconds in which a repeated message returns its task instead of starting a second "
        "turn, up to 604800; 0 turns this off",
    )
    max_connections: Annotated[int, Field(ge=0, le=1_000_000)] = _own(
        "MAX_CONNECTIONS",
        0,
        "the maximum number of connections, 0 to 1000000; 0 means half of the process's limit"
        " of open files, at most 10000. At the limit, idle connections are closed; if there "
        "are none, only probes are answered",
    )
    max_connections_of_address: Annotated[int, Field(ge=0, le=1_000_000)] = _own(
        "MAX_CONNECTIONS_OF_ADDRESS",
        0,
        "the maximum number of connections from one address (IPv6: one /64 network), 0 to "
        "1000000; 0 means half of MAX_CONNECTIONS. A proxy counts as one address",
    )
    max_body: Annotated[int, Field(ge=1024, le=2**31)] = _own(
        "MAX_BODY", 16 * 2**20, "the maximum bytes of a request body, 1024 to 2147483648"
    )
    max_values: Annotated[int, Field(ge=100, le=10_000_000)] = _own(
        "MAX_VALUES",
        5000,
        "the maximum number of JSON values in a request body, 100 to 10000000; each value "
        "blocks the bridge for about 40 µs",
    )
    max_parts: Count = _own(
        "MAX_PARTS", 1000, "the maximum number of parts in a message, 1 to 100000"
    )
    max_files: Annotated[int, Field(ge=0, le=MAX_ATTACHMENTS)] = _own(
        "MAX_FILES",
        MAX_ATTACHMENTS,
        f"the maximum number of files and data parts in a message, 0 to {MAX_ATTACHMENTS}",
    )
    max_file: Annotated[int, Field(ge=1, le=MAX_FILE_BYTES)] = _own(
        "MAX_FILE",
        MAX_FILE_BYTES,
        f"the maximum bytes of a file in a message, 1 to {MAX_FILE_BYTES}",
    )
    keep_files_days: Annotated[float, Field(ge=0, le=36_500)] = _own(
        "KEEP_FILES_DAYS",
        7,
        "days for which the files of a conversation stay after its last message, for its later "
        "turns, up to 36500; 0 removes them when their turn ends (plugin)",
    )
    keep_files_bytes: Annotated[int, Field(ge=1, le=2**50)] = _own(
        "KEEP_FILES_BYTES",
        2**30,
        "the maximum bytes of such files in all, 1 to 1125899906842624; the oldest are removed "
        "first",
    )
    keep_files_bytes_of_conversation: Annotated[int, Field(ge=1, le=2**50)] = _own(
        "KEEP_FILES_BYTES_OF_CONVERSATION",
        100 * 2**20,
        "the maximum bytes of such files of one conversation, 1 to 1125899906842624",
    )
    file_hosts: Annotated[tuple[str, ...], BeforeValidator(parse_hosts)] = _own(
        "FILE_HOSTS",
        (),
        "host,host:port,… — hosts without a public address from which files may be downloaded",
    )
    workspace: Annotated[Path, AfterValidator(_absolute)] | None = _own(
        "WORKSPACE",
        None,
        "the folder whose files peers may name by `workspace:/path` URIs; if unset, none. The "
        "adapter takes /workspace. A new Hermes that `up` configures works in it",
    )
    push_hosts: Annotated[tuple[str, ...], BeforeValidator(parse_hosts)] = _own(
        "PUSH_HOSTS",
        (),
        "host,host:port,… — hosts without a public address to which webhooks may be sent",
    )
    token: SecretStr | None = _own("TOKEN", None, "a peer's token, for `send`, `card` and `doctor`")
    compat_v03: bool = _own(
        "COMPAT_V03", True, "true or false: whether to serve A2A 0.3 clients, too"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _own(
        "LOG_LEVEL", "info", "debug, info, warning or error"
    )

    platform_enabled: bool | None = _known(
        "MOLECULE_A2A_PLATFORM_ENABLED",
        None,
        "true (reach Hermes through the plugin) or false (through chat completions); if "
        "unset, true for `up` and false for `serve`",
    )
    platform_host: str = _known(
        "MOLECULE_A2A_PLATFORM_HOST", "127.0.0.1", "the address where the plugin listens"
    )
    platform_port: Annotated[int, Field(ge=1, le=65535)] = _known(
        "MOLECULE_A2A_PLATFORM_PORT", 8645, "the port where the plugin listens, 1 to 65535"
    )
    callback_host: str = _known(
        "MOLECULE_A2A_CALLBACK_HOST",
        "127.0.0.1",
        "the address where the bridge receives the plugin's callbacks",
    )
    callback_port: Port = _known(
        "MOLECULE_A2A_CALLBACK_PORT",
        8646,
        "the port where the bridge receives the plugin's callbacks, 0 to 65535; 0 chooses a "
        "free port",
    )
    platform_callbacks: Annotated[tuple[str, ...], BeforeValidator(parse_hosts)] = _known(
        "MOLECULE_A2A_PLATFORM_CALLBACKS",
        (),
        "host,host:port,… — bridges that the plugin may call back, in addition to the one "
        "that started Hermes; if there is neither, any bridge on loopback",
    )
    shared_secret: SecretStr | None = _known(
        "MOLECULE_A2A_PLATFORM_SHARED_SECRET",
        None,
        "the secret that the bridge and the plugin share; if unset, `up` generates one at "
        "each start",
    )
    hermes_api_base: Url = _known(
        "HERMES_API_BASE", f"http://127.0.0.1:{API_PORT}/v1", "the URL of Hermes's API server"
    )
    api_server_key: Annotated[SecretStr, Field(min_length=16)] | None = _known(
        "API_SERVER_KEY",
        None,
        "Hermes's API key, at least 16 characters (with a shorter one, Hermes never opens its"
        " port); if unset, `up` generates one at each start",
    )
    smoke_mode: bool = _known(
        "MOLECULE_SMOKE_MODE",
        False,
        "true or false: whether to start without Hermes; the card and /livez answer, but the "
        "bridge is never ready",
    )
    hermes_home: Path | None = _known(
        "HERMES_HOME", None, "Hermes's folder; if unset, a folder below STATE_DIR"
    )
    workspace_config_path: Path = _known(
        "WORKSPACE_CONFIG_PATH",
        Path("/configs"),
        "the folder of a workspace's config.yaml; `up` and `plugin enable` give its mcp_servers to"
        " Hermes",
    )
    workspace_id: str = _known(
        "WORKSPACE_ID",
        "",
        "the name of the platform's workspace; if set, an embedded executor takes the messages of "
        "a sender without a contextId for one conversation",
    )
    ready_budget: Annotated[Seconds, BeforeValidator(_ready_budget)] = _known(
        "HERMES_GATEWAY_READY_BUDGET_SEC",
        _READY_BUDGET,
        "seconds that Hermes has to become ready, up to 86400; any other value is ignored with "
        "a warning",
    )
    inference_model: Annotated[str, Field(pattern=_MODEL_NAME)] = _known(
        "HERMES_INFERENCE_MODEL",
        "",
        "the model that Hermes uses; its prefix selects the provider (`docs/models.md`). The "
        "older name HERMES_DEFAULT_MODEL still works",
    )
    inference_provider: Annotated[
        str, BeforeValidator(_lower), Field(pattern=r"^[a-z0-9._-]{0,64}$")
    ] = _known(
        "HERMES_INFERENCE_PROVIDER", "", "the provider that Hermes uses, whatever the prefix"
    )
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
        for older, name in _OLDER_NAMES.items():
            if older in values:
                values.setdefault(name, values[older])
        aliases = {name: str(field.alias) for name, field in cls.model_fields.items()}
        values |= {aliases[name]: v for name, v in overrides.items() if v is not None}
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _explain(cls, error) from None

    def require_safe_exposure(self) -> None:
        """Raises `ConfigError` if everyone on the network could use the agent and its tools."""
        if not self.peer_tokens and not self.allow_anonymous and not is_loopback(self.host):
            raise ConfigError(
                f"MOLECULE_HERMES_HOST={self.host!r} without peer tokens would let everyone on the "
                "network use this agent and its tools",
                "set MOLECULE_HERMES_PEER_TOKENS=name:token, or, on a private network, "
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

    def require_lasting_secrets(self) -> None:
        """Raises `ConfigError` if a kept Hermes could not be reached by the next bridge."""
        if self.keep_worker and not (self.shared_secret and self.api_server_key):
            raise ConfigError(
                "MOLECULE_HERMES_KEEP_WORKER=true needs secrets that the next start knows, too",
                "set MOLECULE_A2A_PLATFORM_SHARED_SECRET and API_SERVER_KEY, each with at least 16 "
                "characters",
            )

    @property
    def callback_address(self) -> str:
        """`host:port` for callbacks, or only the host if the port is chosen later."""
        host = host_in_url(self.callback_host)
        return f"{host}:{self.callback_port}" if self.callback_port else host

    @property
    def has_several_peers(self) -> bool:
        return len(self.peer_tokens) > 1

    @property
    def home(self) -> Path:
        """Hermes's folder: the one that the user names, or the bridge's own below STATE_DIR."""
        return (self.hermes_home or self.state_dir / "hermes").expanduser().absolute()

    @property
    def owns_home(self) -> bool:
        """Whether Hermes's folder is the bridge's own; the image sets HERMES_HOME to it."""
        return self.home == (self.state_dir / "hermes").absolute()


def _explain(settings: type[Settings], error: ValidationError) -> ConfigError:
    """One line with the variable, the value and what the variable takes."""
    first = error.errors()[0]
    variable = str(first["loc"][0])
    field = next(f for f in settings.model_fields.values() if f.alias == variable)
    secret = "SecretStr" in str(field.annotation)
    value = "(a secret)" if secret else redact(repr(first.get("input")))
    if len(value) > _SHOWN:
        value = f"{value[:_SHOWN]}…"
    return ConfigError(f"{variable}={value} is not valid: it takes {field.description}")


def secret_variables() -> frozenset[str]:
    """The variables whose values are secrets."""
    fields = Settings.model_fields.values()
    return frozenset(str(f.alias) for f in fields if "SecretStr" in str(f.annotation))


def unknown_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables with our prefix that are not settings, each with the most similar setting."""
    known = [str(field.alias) for field in Settings.model_fields.values()]
    unknown = [name for name in environ if name.startswith(PREFIX) and name not in known]
    return {name: (get_close_matches(name, known, 1) or [""])[0] for name in sorted(unknown)}


def settings_table() -> str:
    """The table for the README, generated from the fields."""
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
