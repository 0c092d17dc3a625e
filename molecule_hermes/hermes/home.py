"""Hermes's folder. Changes are merged into its config.yaml and .env, and everything else stays.

A config.yaml that is written from scratch loses `plugins.enabled`, and Hermes then does not load
the plugin without saying so.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from dotenv import dotenv_values
from dotenv.parser import parse_stream
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from molecule_hermes.confined_files import read_regular
from molecule_hermes.errors import StartError
from molecule_hermes.text import is_loopback

__all__ = ["HermesHome", "dump_yaml", "merge", "read_yaml", "write_atomically"]

_STAMP = ".molecule-hermes.json"
_LOCK = ".molecule-hermes.lock"
_COPIED_SOURCES = ("env:", "config:", "model_config")
"""Sources of entries in auth.json that Hermes copied from its environment and configuration."""
_BOOLEANS = {"on", "off", "yes", "no", "y", "n", "true", "false", "null", "~"}


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replaces the file in one step, so that no reader sees half of it. Follows a symbolic link."""
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_yaml(path: Path) -> MutableMapping[str, Any]:
    """The mapping in a YAML file; empty if there is no file. Raises `StartError`."""
    try:
        config = _load(read_regular(path).decode())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise StartError(
            f"cannot read {path}: {error.strerror}", "check its permissions"
        ) from error
    except (YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise StartError(f"{path} is not valid YAML", "fix it, or move it away") from error
    if not isinstance(config, MutableMapping):
        raise StartError(f"{path} is not a mapping", "fix it, or move it away")
    return config


class HermesHome:
    """One HERMES_HOME. Creating the object does not touch the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.env_file = path / ".env"

    def __repr__(self) -> str:
        return f"HermesHome({str(self.path)!r})"

    def create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StartError(
                f"cannot create Hermes's folder {self.path}: {error.strerror}",
                "set MOLECULE_HERMES_STATE_DIR or HERMES_HOME to a folder that you can write to",
            ) from error

    def require_inside(self) -> None:
        """Raises `StartError` if a file of the folder is a link that leads out of it.

        The agent's tools can make such links, and the bridge, which is not confined, would write
        to where they lead.
        """
        top = self.path.resolve()
        for name in (self.config_file.name, self.env_file.name, _STAMP):
            path = self.path / name
            if path.is_symlink() and not path.resolve().is_relative_to(top):
                raise StartError(
                    f"{path} is a link that leads out of Hermes's folder",
                    "replace it by the file itself, or set MOLECULE_HERMES_CONFINE=off",
                )

    def running_gateway(self) -> int | None:
        """The process id of the gateway that runs on this folder, as Hermes records it."""
        try:
            pid = json.loads(read_regular(self.path / "gateway.pid"))["pid"]
            process = psutil.Process(int(pid))
            alive = process.status() != psutil.STATUS_ZOMBIE
            # After a container was killed, our own process may have the recorded number.
            ours = process.pid != os.getpid() and any("hermes" in w for w in process.cmdline())
        except (OSError, ValueError, KeyError, TypeError, psutil.Error):
            return None
        return int(pid) if alive and ours else None

    @contextmanager
    def held(self, lock_file: Path | None = None) -> Iterator[None]:
        """Raises `StartError` if another bridge runs Hermes on this folder.

        A lock, because the other bridge may run in another container on the same volume, where
        its process is not visible.
        """
        lock = _open_lock(lock_file or self.path / _LOCK)
        try:
            self._take(lock)
            yield
        finally:
            os.close(lock)

    def _take(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(
                f"another molecule-hermes already runs Hermes on {self.path}",
                "stop it, or choose another HERMES_HOME or volume",
            ) from None

    def read_config(self) -> MutableMapping[str, Any]:
        return read_yaml(self.config_file)

    def merge_config(
        self, required: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> None:
        """Sets the required values, and the defaults where nothing is set. Keeps the rest."""
        config = self.read_config()
        before = dump_yaml(config)
        merge(config, required, replace=True)
        merge(config, defaults or {}, replace=False)
        after = dump_yaml(config)
        if after != before or not self.config_file.exists():
            write_atomically(self.config_file, after)

    def change_list(self, path: tuple[str, str], *, add: str = "", remove: str = "") -> None:
        """Adds a name to a list in config.yaml, or removes one. Other names stay."""
        config = self.read_config()
        section = config.get(path[0])
        present = section.get(path[1]) if isinstance(section, Mapping) else None
        names = present if isinstance(present, list) else []
        if remove in names:
            names.remove(remove)
        elif add and add not in names:
            names.append(add)
        else:
            return
        if names is not present:
            merge(config, {path[0]: {path[1]: names}}, replace=True)
        write_atomically(self.config_file, dump_yaml(config))

    def set_model(self, block: Mapping[str, Any]) -> None:
        """Replaces the whole `model:` block, so that no key of another provider is left."""
        config = self.read_config()
        config["model"] = dict(block)
        write_atomically(self.config_file, dump_yaml(config))
        self._stamp(model=_fingerprint(block))

    def foreign_model(self) -> Mapping[str, Any] | None:
        """The `model:` block, unless `set_model` wrote it."""
        block = self.read_config().get("model")
        if isinstance(block, str) and block:
            block = {"default": block}
        if not isinstance(block, Mapping) or not block:
            return None
        return None if _fingerprint(block) == self._stamps().get("model") else block

    def demo_port(self) -> int:
        """The port of the demo model in the `model:` block that `set_model` wrote, or 0."""
        block = self.read_config().get("model")
        if not isinstance(block, Mapping) or _fingerprint(block) != self._stamps().get("model"):
            return 0
        try:
            url = urlsplit(str(block.get("base_url", "")))
            return url.port or 0 if is_loopback(url.hostname or "") else 0
        except ValueError:
            return 0

    def set_mcp_servers(self, servers: Mapping[str, Any]) -> None:
        """Adds the servers, and replaces or removes those that an earlier call added.

        A server that the user added or changed stays as it is.
        """
        config = self.read_config()
        before = dump_yaml(config)
        present = config.setdefault("mcp_servers", {})
        if not isinstance(present, MutableMapping):
            present = config["mcp_servers"] = {}
        stamps = self._stamps().get("mcp_servers")
        known = stamps if isinstance(stamps, Mapping) else {}
        ours = {name for name in present if known.get(name) == _fingerprint(present[name])}
        added = {n: server for n, server in servers.items() if n in ours or n not in present}
        for name in ours - added.keys():
            del present[name]
        present.update(added)
        if not ours and not added:
            return
        after = dump_yaml(config)
        if after != before:
            write_atomically(self.config_file, after)
        self._stamp(mcp_servers={name: _fingerprint(server) for name, server in added.items()})

    def _stamps(self) -> dict[str, Any]:
        """Fingerprints of what the bridge itself has written into config.yaml."""
        try:
            stamps = json.loads(read_regular(self.path / _STAMP))
        except (OSError, ValueError):
            return {}
        return stamps if isinstance(stamps, dict) else {}

    def _stamp(self, **changed: Any) -> None:
        write_atomically(self.path / _STAMP, json.dumps(self._stamps() | changed))

    def logins(self) -> frozenset[str]:
        """The providers that Hermes has a login or a stored key for, as `hermes auth` keeps them.

        Entries that Hermes itself copied from the environment do not count.
        """
        try:
            store = json.loads(read_regular(self.path / "auth.json"))
            names = [name for name, state in dict(store.get("providers") or {}).items() if state]
            for name, entries in dict(store.get("credential_pool") or {}).items():
                sources = [str(entry.get("source") or "") for entry in entries]
                if any(
                    s and not s.startswith(("env:", "config:", "model_config")) for s in sources
                ):
                    names.append(name)
        except (OSError, ValueError, TypeError, AttributeError):
            return frozenset()
        return frozenset(names)

    def read_env(self) -> dict[str, str]:
        """The variables as Hermes reads them: python-dotenv, with `${NAME}` expanded."""
        values = dotenv_values(stream=io.StringIO(self._env_text()))
        return {name: value for name, value in values.items() if value is not None}

    def merge_env(self, values: Mapping[str, str], drop: Collection[str] = ()) -> None:
        """Sets variables in .env in place and drops others. The other lines stay.

        Raises `StartError` for a value that cannot be written to an .env file.
        """
        rest = dict(values)
        kept = []
        for binding in parse_stream(io.StringIO(self._env_text())):
            if binding.key in drop:
                continue
            if binding.key not in values:
                kept.append(binding.original.string)
            elif binding.key in rest:
                kept.append(_env_line(binding.key, rest.pop(binding.key)))
        text = "".join(kept)
        text += "" if not text or text.endswith("\n") else "\n"
        text += "".join(_env_line(name, value) for name, value in rest.items())
        self._require_readable(text, values)
        write_atomically(self.env_file, text)

    def _env_text(self) -> str:
        try:
            return read_regular(self.env_file).decode()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            raise StartError(f"{self.env_file} is not UTF-8", "fix it, or move it away") from error

    def _require_readable(self, text: str, values: Mapping[str, str]) -> None:
        """Raises `StartError` if dotenv reads back another value, as with some quotes or `${`."""
        read = dotenv_values(stream=io.StringIO(text))
        for name, value in values.items():
            if read.get(name) != value:
                raise StartError(
                    f"the value of {name} cannot be written to {self.env_file}",
                    "use only letters and digits",
                )


def _open_lock(path: Path) -> int:
    """The agent's tools can write to Hermes's folder: a link or a pipe there is not opened."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise StartError(f"cannot lock {path}: {error.strerror}", "remove that file") from error


def _env_line(name: str, value: str) -> str:
    """Quotes the value if needed: a bare one ends at ` #` and must not begin with a quote."""
    if re.fullmatch(r"[\w.~+/=:@%-]*", value, re.ASCII):
        return f"{name}={value}\n"
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"{name}='{escaped}'\n"


def merge(target: MutableMapping[str, Any], changes: Mapping[str, Any], *, replace: bool) -> None:
    """Adds the changes at every depth. Without `replace`, what is set stays."""
    for key, value in changes.items():
        present = target.get(key)
        if isinstance(value, Mapping):
            if not isinstance(present, MutableMapping):
                if present is not None and not replace:
                    continue
                present = target[key] = {}
            merge(present, value, replace=replace)
        elif replace or present is None:
            target[key] = _plain(value)


def _plain(value: Any) -> Any:
    """Quotes words such as `off`, which Hermes's YAML 1.1 parser reads as false."""
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return DoubleQuotedScalarString(value)
    return value


def _load(text: str) -> Any:
    yaml = YAML()
    # Without quotes, Hermes's YAML 1.1 parser does not read "off" or "12:30" as text.
    yaml.preserve_quotes = True
    config = yaml.load(text)
    if config is None:
        comments = [line for line in text.splitlines() if line.lstrip().startswith("#")]
        config = yaml.load("\n".join([*comments, "{}"]))
        config.fa.set_block_style()
    return config


def dump_yaml(config: Mapping[str, Any]) -> str:
    """The mapping as YAML, with the comments that it was read with."""
    yaml = YAML()
    yaml.width = 4096
    stream = io.StringIO()
    yaml.dump(config, stream)
    return stream.getvalue()


def _fingerprint(block: object) -> str:
    plain = dict(block) if isinstance(block, Mapping) else block
    text = json.dumps(plain, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
