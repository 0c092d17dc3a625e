"""The bridge's own variables, those that begin with MOLECULE_HERMES_."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from molecule_hermes.config.fields import (
    DAY,
    Count,
    Port,
    PublicUrl,
    Seconds,
    absolute_path,
    default_state_dir,
    own,
    parse_models,
    parse_paths,
    parse_peer_tokens,
    parse_store,
)
from molecule_hermes.net.urls import call_url, parse_hosts
from molecule_hermes.wire import MAX_ATTACHMENTS, MAX_FILE_BYTES, MAX_SYSTEM_PROMPT

__all__ = ["OwnSettings"]


class OwnSettings(BaseModel):
    """The variables with our prefix. A description says what its variable takes."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str = own("HOST", "127.0.0.1", "the address to listen on")
    port: Port = own("PORT", 8000, "a port number, 0 to 65535; 0 chooses a free port")
    public_url: PublicUrl | None = own(
        "PUBLIC_URL",
        None,
        "the URL that peers use, if it is not HOST:PORT: http:// or https://, a host, and "
        "optionally a path of letters, digits, dots and hyphens; neither the card's URL nor a"
        " path that the bridge itself serves",
    )
    state_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=default_state_dir,
        alias="MOLECULE_HERMES_STATE_DIR",
        description="the folder for everything that must survive a restart",
    )
    store: Annotated[SecretStr, BeforeValidator(parse_store)] = own(
        "STORE",
        SecretStr("sqlite"),
        "sqlite (a file in STATE_DIR), memory, or postgresql://user:password@host/name",
    )
    checkpoint: Annotated[float, Field(ge=0.05, le=3600)] = own(
        "CHECKPOINT",
        1,
        "seconds between two writes of streamed text to the store, 0.05 to 3600; status "
        "changes are stored at once",
    )
    keep_days: Annotated[float, Field(gt=0, le=36_500)] = own(
        "KEEP_DAYS", 30, "days for which an ended task is kept, up to 36500"
    )
    keep_tasks: Annotated[int, Field(ge=0)] = own(
        "KEEP_TASKS",
        0,
        "the maximum number of ended tasks to keep; 0 means no limit besides KEEP_DAYS",
    )
    max_stored_bytes_of_peer: Annotated[int, Field(ge=0, le=2**50)] = own(
        "MAX_STORED_BYTES_OF_PEER",
        4 * 2**30,
        "the maximum bytes of one peer's stored tasks, 0 to 1125899906842624; beyond it the "
        "peer's turns are refused as `quota`; 0 means no limit",
    )
    peer_tokens: Annotated[dict[str, SecretStr], BeforeValidator(parse_peer_tokens)] = own(
        "PEER_TOKENS",
        {},
        "name:token,… — the peers that may call; names and tokens must be unique, and a token"
        " has at least 16 characters",
    )
    config: Annotated[Path, AfterValidator(absolute_path)] | None = own(
        "CONFIG",
        None,
        "the YAML file that names agents, routes and peers (`docs/agents.md`); if unset, there is "
        "one agent",
    )
    allow_anonymous: bool = own(
        "ALLOW_ANONYMOUS",
        False,
        "true or false: whether to listen beyond loopback without peer tokens",
    )
    handoff_timeout: Annotated[float, Field(gt=0, le=3600)] = own(
        "HANDOFF_TIMEOUT",
        60,
        "seconds within which a conversation must arrive at the peer that it is handed over to, up "
        "to 3600",
    )
    handoff_to: str = own(
        "HANDOFF_TO",
        "",
        "PEER or PEER/CONTEXT: to whom `/handoff molecule_a2a` in Hermes's own CLI hands a "
        "conversation over; without a CONTEXT each gets a new one",
    )
    isolation: Literal["shared", "peer"] | None = own(
        "ISOLATION",
        None,
        "peer (each peer has a Hermes of its own, with its own memory, sessions and files) or "
        "shared (all peers of an agent share one); if unset, peer with several peer tokens, unless "
        "SHARED_MEMORY is true; for `up`",
    )
    max_workers: Annotated[int, Field(ge=1, le=10_000)] = own(
        "MAX_WORKERS",
        16,
        "the maximum number of Hermes processes that `up` runs at once, 1 to 10000; at the limit, "
        "one without work is stopped for another",
    )
    worker_idle: Annotated[float, Field(gt=0, le=30 * DAY)] = own(
        "WORKER_IDLE",
        900,
        "seconds after which a peer's Hermes without work is stopped, up to 2592000; it starts "
        "again with the peer's next message",
    )
    confine: Literal["auto", "require", "off"] = own(
        "CONFINE",
        "auto",
        "auto (Hermes and its tools see only their own folders and the system's, as far as the "
        "kernel can enforce it), require (`up` does not start without that) or off",
    )
    readable: Annotated[tuple[Path, ...], BeforeValidator(parse_paths)] = own(
        "READABLE",
        (),
        "path:path:… — further files and folders that a confined Hermes and its tools may read",
    )
    writable: Annotated[tuple[Path, ...], BeforeValidator(parse_paths)] = own(
        "WRITABLE",
        (),
        "path:path:… — further files and folders that a confined Hermes and its tools may read "
        "and write; several workers share them",
    )
    shared_memory: bool = own(
        "SHARED_MEMORY",
        False,
        "true or false: whether several peers share Hermes's memory, session search and cron "
        "jobs; with false, `up` disables them",
    )
    name: str = own("NAME", "Hermes", "the agent's name on its card")
    description: str = own(
        "DESCRIPTION",
        "The Hermes agent: conversations with memory, skills and tools.",
        "the agent's description on its card",
    )
    model: str = own("MODEL", "hermes-agent", "the model name that is sent to Hermes")
    demo: Literal["auto", "always", "never"] = own(
        "DEMO",
        "auto",
        "auto (the demo model answers if no model key is set and the bridge is reachable on "
        "loopback only), always (it answers, whatever keys are set) or never",
    )
    models: Annotated[tuple[str, ...], BeforeValidator(parse_models)] = own(
        "MODELS",
        (),
        "name,name,… — the models that a message may choose for its turn, as the provider of "
        "Hermes's own model names them; if unset, none",
    )
    system_prompt: Annotated[str, Field(max_length=MAX_SYSTEM_PROMPT)] = own(
        "SYSTEM_PROMPT", "", f"a system prompt for Hermes, at most {MAX_SYSTEM_PROMPT} characters"
    )
    turn_timeout: Seconds = own(
        "TURN_TIMEOUT",
        600,
        "the maximum seconds of a turn, including its time in the queue; up to 86400",
    )
    approvals: Literal["ask", "deny"] = own(
        "APPROVALS",
        "ask",
        "ask (the peer approves dangerous commands) or deny (they are always denied)",
    )
    reply: Literal["task", "message"] = own(
        "REPLY",
        "task",
        "task (a peer gets a task and follows it) or message (a peer gets one message with the "
        "final answer, and no question ever reaches it)",
    )
    deliveries: bool = own(
        "DELIVERIES",
        True,
        "true or false: whether the agent may speak after its turn, or unasked, when a job of its "
        "own ends (plugin)",
    )
    max_deliveries: Annotated[int, Field(ge=0, le=100_000)] = own(
        "MAX_DELIVERIES",
        256,
        "the maximum number of deliveries that have not ended, 0 to 100000; further ones are "
        "refused, and the agent is told",
    )
    max_deliveries_of_peer: Annotated[int, Field(ge=0, le=100_000)] = own(
        "MAX_DELIVERIES_OF_PEER",
        16,
        "the maximum number of one agent's deliveries to one peer that have not ended, 0 to 100000",
    )
    max_deliveries_per_hour: Annotated[int, Field(ge=0, le=100_000)] = own(
        "MAX_DELIVERIES_PER_HOUR",
        120,
        "the maximum number of one agent's deliveries to one peer within an hour, 0 to 100000; 0 "
        "means no limit",
    )
    question_timeout: Seconds = own(
        "QUESTION_TIMEOUT",
        300,
        "seconds that a peer has to answer a question, up to 86400; then a command is denied,"
        " and any other question is left to the agent",
    )
    drain_timeout: Annotated[float, Field(ge=0, le=3600)] = own(
        "DRAIN_TIMEOUT", 30, "seconds that running turns get to end at shutdown, 0 to 3600"
    )
    keep_worker: bool = own(
        "KEEP_WORKER",
        False,
        "true or false: whether Hermes and its turns go on when the bridge ends, because something "
        "starts the bridge again; `up` then needs MOLECULE_A2A_PLATFORM_SHARED_SECRET and "
        "API_SERVER_KEY",
    )
    keep_turns: Seconds = own(
        "KEEP_TURNS",
        3600,
        "seconds for which the plugin keeps an ended turn for a bridge that is restarted, up to "
        "86400; a turn whose end no bridge has is kept longer",
    )
    keep_turns_bytes: Annotated[int, Field(ge=2**20, le=2**40)] = own(
        "KEEP_TURNS_BYTES",
        64 * 2**20,
        "the maximum bytes of running and ended turns that the plugin keeps for that, 1048576 to "
        "1099511627776",
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = own(
        "MAX_RESTARTS",
        5,
        "how many times within RESTART_WINDOW `up` restarts a Hermes that ends before it is "
        "ready, 0 to 1000; a Hermes that was ready is always restarted",
    )
    restart_window: Seconds = own(
        "RESTART_WINDOW",
        300,
        "seconds in which failed starts of Hermes are counted, up to 86400",
    )
    max_running: Count = own(
        "MAX_RUNNING", 10, "the maximum number of turns that run at once, 1 to 100000"
    )
    max_running_of_peer: Annotated[int, Field(ge=0, le=100_000)] = own(
        "MAX_RUNNING_OF_PEER",
        0,
        "the maximum number of one peer's turns that run at once, 0 to 100000; 0 means no "
        "per-peer limit, or MAX_RUNNING - 1 with several peer tokens",
    )
    max_questions: Annotated[int, Field(ge=0, le=100_000)] = own(
        "MAX_QUESTIONS",
        64,
        "the maximum number of open questions to peers, 0 to 100000; further questions are "
        "denied at once. A turn with an open question does not count for MAX_RUNNING",
    )
    max_questions_of_peer: Annotated[int, Field(ge=0, le=100_000)] = own(
        "MAX_QUESTIONS_OF_PEER", 16, "the maximum number of open questions to one peer, 0 to 100000"
    )
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = own(
        "MAX_WAITING",
        200,
        "the maximum number of queued turns, 0 to 100000; further turns are refused as `busy`",
    )
    max_waiting_of_peer: Annotated[int, Field(ge=0, le=100_000)] = own(
        "MAX_WAITING_OF_PEER", 100, "the maximum number of one peer's queued turns, 0 to 100000"
    )
    max_waiting_bytes: Annotated[int, Field(ge=0, le=2**40)] = own(
        "MAX_WAITING_BYTES",
        64 * 2**20,
        "the maximum bytes of text and files in queued turns, 0 or more; one peer may use "
        "half of it; further turns are refused as `busy`",
    )
    max_events: Count = own(
        "MAX_EVENTS",
        1024,
        "the maximum number of events that a subscriber may lag behind, 1 to 100000; then its"
        " stream ends",
    )
    retry_window: Annotated[float, Field(ge=0, le=7 * 86_400)] = own(
        "RETRY_WINDOW",
        3600,
        "seconds in which a repeated message returns its task instead of starting a second "
        "turn, up to 604800; 0 turns this off",
    )
    max_connections: Annotated[int, Field(ge=0, le=1_000_000)] = own(
        "MAX_CONNECTIONS",
        0,
        "the maximum number of connections, 0 to 1000000; 0 means half of the process's limit"
        " of open files, at most 10000. At the limit, idle connections are closed; if there "
        "are none, only probes are answered",
    )
    max_connections_of_address: Annotated[int, Field(ge=0, le=1_000_000)] = own(
        "MAX_CONNECTIONS_OF_ADDRESS",
        0,
        "the maximum number of connections from one address (IPv6: one /64 network), 0 to "
        "1000000; 0 means half of MAX_CONNECTIONS. A proxy counts as one address",
    )
    max_body: Annotated[int, Field(ge=1024, le=2**31)] = own(
        "MAX_BODY", 16 * 2**20, "the maximum bytes of a request body, 1024 to 2147483648"
    )
    max_values: Annotated[int, Field(ge=100, le=10_000_000)] = own(
        "MAX_VALUES",
        5000,
        "the maximum number of JSON values in a request body, 100 to 10000000; each value "
        "blocks the bridge for about 40 µs",
    )
    max_parts: Count = own(
        "MAX_PARTS", 1000, "the maximum number of parts in a message, 1 to 100000"
    )
    max_files: Annotated[int, Field(ge=0, le=MAX_ATTACHMENTS)] = own(
        "MAX_FILES",
        MAX_ATTACHMENTS,
        f"the maximum number of files and data parts in a message, 0 to {MAX_ATTACHMENTS}",
    )
    max_file: Annotated[int, Field(ge=1, le=MAX_FILE_BYTES)] = own(
        "MAX_FILE",
        MAX_FILE_BYTES,
        f"the maximum bytes of a file in a message, 1 to {MAX_FILE_BYTES}",
    )
    keep_files_days: Annotated[float, Field(ge=0, le=36_500)] = own(
        "KEEP_FILES_DAYS",
        7,
        "days for which the files of a conversation stay after its last message, for its later "
        "turns, up to 36500; 0 removes them when their turn ends (plugin)",
    )
    keep_files_bytes: Annotated[int, Field(ge=1, le=2**50)] = own(
        "KEEP_FILES_BYTES",
        2**30,
        "the maximum bytes of such files in all, 1 to 1125899906842624; the oldest are removed "
        "first",
    )
    keep_files_bytes_of_conversation: Annotated[int, Field(ge=1, le=2**50)] = own(
        "KEEP_FILES_BYTES_OF_CONVERSATION",
        100 * 2**20,
        "the maximum bytes of such files of one conversation, 1 to 1125899906842624",
    )
    max_hops: Annotated[int, Field(ge=0, le=64)] = own(
        "MAX_HOPS",
        5,
        "how many calls from agent to agent may lead to a message, 0 to 64; further ones are "
        "refused as `forbidden`, and with 0 agents call each other not at all",
    )
    max_calls: Annotated[int, Field(ge=0, le=10_000)] = own(
        "MAX_CALLS",
        20,
        "how many times an agent may ask other agents in one turn, 0 to 10000",
    )
    call_timeout: Annotated[float, Field(ge=1, le=3600)] = own(
        "CALL_TIMEOUT",
        300,
        "seconds for which an agent waits for another agent's answer, 1 to 3600; after that, it "
        "can ask for the task's state",
    )
    registry: Annotated[str, BeforeValidator(call_url)] | None = own(
        "REGISTRY",
        None,
        "the URL of a list of other agents that agents may ask, as far as their `calls` name them "
        "(`docs/outbound.md`); if unset, only peers of the configuration file are asked (plugin)",
    )
    registry_token: SecretStr | None = own(
        "REGISTRY_TOKEN", None, "the token for REGISTRY, sent to that URL only"
    )
    registry_hosts: Annotated[tuple[str, ...], BeforeValidator(parse_hosts)] = own(
        "REGISTRY_HOSTS",
        (),
        "host,host:port,… — hosts without a public address where agents of REGISTRY may be asked",
    )
    file_hosts: Annotated[tuple[str, ...], BeforeValidator(parse_hosts)] = own(
        "FILE_HOSTS",
        (),
        "host,host:port,… — hosts without a public address from which files may be downloaded",
    )
    workspace: Annotated[Path, AfterValidator(absolute_path)] | None = own(
        "WORKSPACE",
        None,
        "the folder whose files peers may name by `workspace:/path` URIs; if unset, none. The "
        "adapter takes /workspace. A new Hermes that `up` configures works in it",
    )
    push_hosts: Annotated[tuple[str, ...], BeforeValidator(parse_hosts)] = own(
        "PUSH_HOSTS",
        (),
        "host,host:port,… — hosts without a public address to which webhooks may be sent",
    )
    token: SecretStr | None = own(
        "TOKEN", None, "a peer's token, for `send`, `watch`, `card` and `doctor`"
    )
    compat_v03: bool = own(
        "COMPAT_V03", True, "true or false: whether to serve A2A 0.3 clients, too"
    )
    log_level: Literal["debug", "info", "warning", "error"] = own(
        "LOG_LEVEL", "info", "debug, info, warning or error"
    )
