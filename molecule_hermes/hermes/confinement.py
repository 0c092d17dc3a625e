"""What a Hermes that `up` runs may reach, once it is confined (`plugin/landlock.py`)."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import pwd
import site
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from molecule_hermes.errors import StartError
from molecule_hermes.plugin import landlock
from molecule_hermes.plugin.landlock import Rules

__all__ = [
    "MAX_TMP",
    "confinement_for",
    "environment_for",
    "missing",
    "require_confinement",
    "start_lines",
    "tmp_folder",
    "uses_user_site",
]

logger = logging.getLogger(__name__)

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/etc", "/opt"),
    *(
        "/proc",
        "/sys",
        "/nix/store",
        "/gnu/store",
        "/run/current-system",
        "/var/lib/ca-certificates",
    ),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf"),
)
_DNS_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/localtime")
"""Often links to places elsewhere."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Not /dev/pts: it holds the terminals of all processes of a user, the operator's among them, and
Hermes does without (tools/process_registry.py:756). Not /dev/shm: workers would share it."""
_PREFIX_FOLDERS = ("bin", "include", "lib", "lib64", "libexec", "share", "ssl", "pyvenv.cfg")
_MAX_ENTRIES = 20_000
MAX_TMP = 107 - len("/hermes_rpc_.sock") - 32
"""The most bytes of a path for TMPDIR: execute_code makes a Unix socket in it whose path the kernel
limits to 107 bytes (tools/code_execution_tool.py:1270)."""


def confinement_for(
    home: Path,
    work: Path,
    tmp: Path,
    *,
    protected: Iterable[Path] = (),
    readable: Iterable[Path] = (),
    writable: Iterable[Path] = (),
    ports: Iterable[int] | None = (),
) -> Rules:
    """The rules for one worker. Its three folders must exist.

    Nothing that is `protected`, such as the bridge's state, becomes readable because a folder of
    the system contains it: the other entries of that folder are granted one by one then, as they
    are now. The worker's own folders and `writable` may lie inside. Raises `StartError`.
    """
    own = [_own(path, (home, work, tmp)) for path in (home, work, tmp)]
    if len(os.fsencode(own[2])) > MAX_TMP:
        raise StartError(
            f"the path of the folder for temporary files is too long: {own[2]} has more than "
            f"{MAX_TMP} bytes, and Hermes makes sockets in it",
            "set TMPDIR, or MOLECULE_HERMES_STATE_DIR, to a shorter path",
        )
    shared = [path.resolve() for path in writable]
    secret = {path.resolve() for path in protected}
    _require_apart("WRITABLE", shared, secret)
    asked = [path.resolve() for path in readable]
    _require_apart("READABLE", asked, secret)
    read = [*asked, *_system(secret | _homes()), *_runtime(secret | _homes())]
    devices = [path for path in shared if path.is_relative_to("/dev")]
    return Rules(
        read=_outermost(read),
        write=_outermost([*own, *(p for p in shared if p not in devices or p.is_dir())]),
        devices=(*_DEVICES, *map(str, devices)),
        bind_ports=None if ports is None else tuple(ports),
    )


def tmp_folder(preferred: Path) -> Path:
    """Creates a worker's folder for temporary files: the given one, unless its path is too long.

    Then it is one in the folder for temporary files of this machine, the same after a restart.
    """
    folder = preferred.absolute()
    if len(os.fsencode(folder)) > MAX_TMP:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        folder = Path(tempfile.gettempdir(), f"mh-{name}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or not _is_ours(folder):
        raise StartError(f"{folder} is not a folder of this user", "remove it, or set TMPDIR")
    return folder


def environment_for(home: Path, work: Path, tmp: Path) -> dict[str, str]:
    """The variables that lead Hermes and its tools into the worker's folders.

    `work` is HOME, so that the agent's own files are where its tools look for them.
    """
    cache = home / "cache" / "xdg"
    variables = {
        "HOME": str(work),
        "TMPDIR": str(tmp),
        "XDG_CACHE_HOME": str(cache),
        "XDG_CONFIG_HOME": str(work / ".config"),
        "XDG_DATA_HOME": str(work / ".local" / "share"),
        "XDG_STATE_HOME": str(work / ".local" / "state"),
        "XDG_RUNTIME_DIR": str(tmp),
    }
    if uses_user_site():
        # Hermes is installed in it.
        variables["PYTHONUSERBASE"] = site.getuserbase()
    return variables


def uses_user_site() -> bool:
    """Whether this Python imports packages from below the user's home (`pip install --user`)."""
    return site.getusersitepackages() in sys.path


def missing(ports: bool = True) -> tuple[str, ...]:
    """What this kernel cannot enforce, as sentences; empty where all of it holds."""
    return landlock.unenforceable(Rules(bind_ports=() if ports else None))


def require_confinement() -> None:
    """Raises `StartError` where this kernel cannot enforce all of it."""
    if lacks := missing():
        raise StartError(
            f"MOLECULE_HERMES_CONFINE=require, but Hermes cannot be confined: {' '.join(lacks)}",
            "use a newer kernel, or MOLECULE_HERMES_CONFINE=auto to run it all the same",
        )


def start_lines(confine: str) -> tuple[str, ...]:
    """What `up` says of it at its start; nothing where all of it holds."""
    if confine == "off":
        return ("Hermes and its tools are not confined (MOLECULE_HERMES_CONFINE=off)",)
    return tuple(f"Hermes is not fully confined: {lack}" for lack in missing())


def _own(path: Path, all_own: tuple[Path, ...]) -> Path:
    """A folder of the worker, resolved. A link that its tools could have made is refused."""
    absolute = path.absolute()
    for outer in all_own:
        outer_absolute = outer.absolute()
        if absolute != outer_absolute and absolute.is_relative_to(outer_absolute):
            expected = outer.resolve() / absolute.relative_to(outer_absolute)
            if absolute.resolve() != expected:
                raise StartError(
                    f"{path} is, or is behind, a symbolic link in a folder of the agent",
                    "remove the link",
                )
    return absolute.resolve()


def _require_apart(setting: str, paths: Iterable[Path], secret: Iterable[Path]) -> None:
    for path in paths:
        if holds := next((s for s in secret if s.is_relative_to(path)), None):
            raise StartError(
                f"MOLECULE_HERMES_{setting}: {path} contains {holds}, which no agent may see",
                "name the folders beside it",
            )


def _homes() -> set[Path]:
    """The homes of this user. In a container a home can be `/`, which says nothing."""
    homes = {Path.home()}
    with contextlib.suppress(KeyError):
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    # Accounts of services can have one of the system's folders for a home.
    return {home.resolve() for home in homes if _is_ours(home)} - {Path("/")}


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _system(secret: set[Path]) -> Iterator[Path]:
    for name in _SYSTEM:
        if name == "/etc" and os.geteuid() == 0:
            # Root owns what is in it and could read all of it, such as /etc/shadow.
            secret = secret | set(_private(Path(name)))
        yield from _without(Path(name).resolve(), secret)
    for name in _DNS_FILES:
        yield from _without(Path(name).resolve(), secret)


def _private(folder: Path) -> Iterator[Path]:
    """What is below the folder and not readable for everyone."""
    left = _MAX_ENTRIES
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            entry = Path(path, name)
            left -= 1
            try:
                mode = entry.lstat().st_mode
            except OSError:
                continue
            if left < 0 or not (stat.S_ISLNK(mode) or mode & stat.S_IROTH):
                yield entry
                if name in folders:
                    folders.remove(name)


def _runtime(secret: set[Path]) -> Iterator[Path]:
    """Python, what is installed for it, and this package."""
    interpreter = Path(sys.executable).resolve()
    for prefix in {sys.prefix, sys.exec_prefix, sys.base_prefix, str(interpreter.parents[1])}:
        for name in _PREFIX_FOLDERS:
            yield from _without(Path(prefix, name).resolve(), secret)
    for entry in sys.path:
        if Path(entry).name in ("site-packages", "dist-packages"):
            yield from _without(Path(entry).resolve(), secret)
    for package in ("molecule_hermes", "hermes_cli"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            folder = Path(spec.origin).resolve().parent
            # A checkout of Hermes has modules beside its packages.
            yield from _without(folder if package == "molecule_hermes" else folder.parent, secret)


def _without(path: Path, secret: Iterable[Path]) -> Iterator[Path]:
    """The path, or, if it contains something secret, those of its entries that do not."""
    if not path.exists() or path in secret:
        return
    inside = [s for s in secret if s.is_relative_to(path)]
    if not inside:
        yield path
        return
    logger.debug("in %s, Hermes may read only what is there now", path)
    for entry in _entries(path):
        # A link leads elsewhere, and is granted there or not at all.
        if not entry.is_symlink():
            yield from _without(entry, inside)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:_MAX_ENTRIES]
    except OSError:
        return []


def _outermost(paths: Iterable[Path]) -> tuple[str, ...]:
    """Without those that are inside others."""
    found: list[Path] = []
    for path in sorted(set(paths)):
        if not (found and path.is_relative_to(found[-1])):
            found.append(path)
    return tuple(map(str, found))
