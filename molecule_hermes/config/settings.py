"""The settings from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, SecretStr, ValidationError

from molecule_hermes.config.fields import (
    MODEL_NAME,
    READY_BUDGET,
    Port,
    Seconds,
    Url,
    known,
    lower_case,
    parse_ready_budget,
)
from molecule_hermes.config.own_settings import OwnSettings
from molecule_hermes.errors import ConfigError
from molecule_hermes.net.urls import base_url, host_in_url, local_base_url, parse_hosts
from molecule_hermes.text import is_loopback, redact

__all__ = ["Settings"]

API_PORT = 8642
_OLDER_NAMES = {"HERMES_DEFAULT_MODEL": "HERMES_INFERENCE_MODEL"}
_SHOWN = 200
"""How many characters of an invalid value an error shows."""


class Settings(OwnSettings):
    """The settings. Each field's description says what its variable takes, also in the README."""

    platform_enabled: bool | None = known(
        "MOLECULE_A2A_PLATFORM_ENABLED",
        None,
        "true (reach Hermes through the plugin) or false (through chat completions); if "
        "unset, true for `up` and false for `serve`",
    )
    platform_host: str = known(
        "MOLECULE_A2A_PLATFORM_HOST", "127.0.0.1", "the address where the plugin listens"
    )
    platform_port: Annotated[int, Field(ge=1, le=65535)] = known(
        "MOLECULE_A2A_PLATFORM_PORT", 8645, "the port where the plugin listens, 1 to 65535"
    )
    callback_host: str = known(
        "MOLECULE_A2A_CALLBACK_HOST",
        "127.0.0.1",
        "the address where the bridge receives the plugin's callbacks",
    )
    callback_port: Port = known(
        "MOLECULE_A2A_CALLBACK_PORT",
        8646,
        "the port where the bridge receives the plugin's callbacks, 0 to 65535; 0 chooses a "
        "free port",
    )
    platform_callbacks: Annotated[tuple[str, ...], BeforeValidator(parse_hosts)] = known(
        "MOLECULE_A2A_PLATFORM_CALLBACKS",
        (),
        "host,host:port,… — bridges that the plugin may call back, in addition to the one "
        "that started Hermes; if there is neither, any bridge on loopback",
    )
    shared_secret: SecretStr | None = known(
        "MOLECULE_A2A_PLATFORM_SHARED_SECRET",
        None,
        "the secret that the bridge and the plugin share; if unset, `up` generates one at "
        "each start",
    )
    hermes_api_base: Url = known(
        "HERMES_API_BASE", f"http://127.0.0.1:{API_PORT}/v1", "the URL of Hermes's API server"
    )
    api_server_key: Annotated[SecretStr, Field(min_length=16)] | None = known(
        "API_SERVER_KEY",
        None,
        "Hermes's API key, at least 16 characters (with a shorter one, Hermes never opens its"
        " port); if unset, `up` generates one at each start",
    )
    smoke_mode: bool = known(
        "MOLECULE_SMOKE_MODE",
        False,
        "true or false: whether to start without Hermes; the card and /livez answer, but the "
        "bridge is never ready",
    )
    hermes_home: Path | None = known(
        "HERMES_HOME", None, "Hermes's folder; if unset, a folder below STATE_DIR"
    )
    workspace_config_path: Path = known(
        "WORKSPACE_CONFIG_PATH",
        Path("/configs"),
        "the folder of a workspace's config.yaml; `up` and `plugin enable` give its mcp_servers to"
        " Hermes",
    )
    workspace_id: str = known(
        "WORKSPACE_ID",
        "",
        "the name of the platform's workspace; if set, an embedded executor takes the messages of "
        "a sender without a contextId for one conversation",
    )
    ready_budget: Annotated[Seconds, BeforeValidator(parse_ready_budget)] = known(
        "HERMES_GATEWAY_READY_BUDGET_SEC",
        READY_BUDGET,
        "seconds that Hermes has to become ready, up to 86400; any other value is ignored with "
        "a warning",
    )
    inference_model: Annotated[str, Field(pattern=MODEL_NAME)] = known(
        "HERMES_INFERENCE_MODEL",
        "",
        "the model that Hermes uses; its prefix selects the provider (`docs/models.md`). The "
        "older name HERMES_DEFAULT_MODEL still works",
    )
    inference_provider: Annotated[
        str, BeforeValidator(lower_case), Field(pattern=r"^[a-z0-9._-]{0,64}$")
    ] = known("HERMES_INFERENCE_PROVIDER", "", "the provider that Hermes uses, whatever the prefix")
    custom_base_url: Url | None = known(
        "HERMES_CUSTOM_BASE_URL", None, "the URL of an OpenAI-compatible model server"
    )
    custom_api_key: SecretStr | None = known(
        "HERMES_CUSTOM_API_KEY", None, "the key for HERMES_CUSTOM_BASE_URL"
    )
    custom_api_mode: str = known(
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
        return local_base_url(self.host, self.port)

    @property
    def handoffs_dir(self) -> Path:
        """Records of the conversations that were handed over."""
        return self.state_dir / "handoffs"

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
