"""The inputs of an image build: a base image, wheels, and this checkout."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import tomllib
import venv
from pathlib import Path

from image_smoke.engines import Engine, install
from image_smoke.report import CheckError, Job, Report, run

ROOT = Path(__file__).resolve().parent.parent.parent
IMAGE = "localhost/molecule-hermes:smoke"
WORKSPACE = "localhost/molecule-hermes:smoke-workspace"
_SUITE = "trixie"
_OWN_BASE = f"localhost/molecule-hermes-base:{_SUITE}"
_MAKE_BASE = f"""
root=$1 tar=$2
shift 2
mount -t tmpfs -o mode=755 tmpfs "$root"
packages=python3,python3-venv,tini,ca-certificates
debootstrap --variant=minbase --include=$packages {_SUITE} "$root" "$@"
cd "$root"
rm -rf var/cache/apt/* var/lib/apt/lists/* usr/share/doc usr/share/locale
tar --create --file "$tar" .
"""


def build_images(engine: Engine, cache: Path, report: Report) -> tuple[str, str]:
    """Builds IMAGE and WORKSPACE from a base that was pulled or created, and from downloaded
    wheels."""
    with Wheels(cache) as wheels:
        base = report.need("a base image", lambda: find_base(engine, cache))
        report.need("wheels for it", wheels.finish)
    options = ["--build-arg", f"BASE={base}", "--build-arg", f"REVISION={_revision()}"]
    options += ["--build-arg", f"VERSION={_version()}", "--build-arg", "PIP_NO_INDEX=1"]
    options += ["--build-context", f"wheels={wheels.folder}"]

    def build(image: str, *more: str) -> str:
        engine.build(ROOT, image, *options, *more)
        return engine.size(image)

    report.need("the image is built", lambda: build(IMAGE))
    report.need("the workspace's image is built", lambda: build(WORKSPACE, "--target", "workspace"))
    return IMAGE, WORKSPACE


def find_base(engine: Engine, cache: Path) -> str:
    """Returns the Dockerfile's base if a registry has it, otherwise a Debian created here."""
    if engine.has(_OWN_BASE):
        return _OWN_BASE
    wanted = _found(r"^ARG BASE=(\S+)$", ROOT / "Dockerfile")
    try:
        if not engine.has(wanted):
            engine.pull(wanted)
        return wanted
    except CheckError:
        engine.import_base(debootstrap(cache), _OWN_BASE)
        return _OWN_BASE


def debootstrap(cache: Path) -> Path:
    """Returns a tar file of a minimal Debian with Python, without apt's caches."""
    tar = cache / f"{_SUITE}.tar"
    if tar.exists():
        return tar
    if not shutil.which("debootstrap"):
        install("debootstrap")
    part, root = tar.with_suffix(".part"), cache / "root"
    root.mkdir(exist_ok=True)
    # In memory, in a mount namespace of this command: faster, and nothing remains in any case.
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _MAKE_BASE, "sh"]
    run([*alone, root, part, *_mirror()], limit=600)
    part.rename(tar)
    return tar


def _mirror() -> list[str]:
    """Returns the Debian mirror of this machine's apt; empty for debootstrap's default."""
    try:
        listed = run(
            ["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)"], limit=30
        )
    except (CheckError, OSError):
        return []
    found = re.search(r"^Debian Debian (\S+)$", listed, re.M)
    return [found[1]] if found else []


class Wheels:
    """Wheels, downloaded with this machine's pip, so that the build needs no package index.

    Entering the context starts the download; `finish` waits for it.
    """

    def __init__(self, cache: Path) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
        needed += project["project"]["optional-dependencies"]["mcp"]
        constraints = ROOT / "constraints.txt"
        python = _found(r"^ARG BASE=python:(3\.\d+)", ROOT / "Dockerfile")
        # pip evaluates markers for the Python it runs on, not for the target. If a wheel is missing
        # because of that, the build names it.
        self._command = ["download", "--quiet", *needed, "--python-version", python]
        self._command += ["--only-binary=:all:", "--implementation", "cp"]
        for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux1"):
            self._command += ["--platform", f"{tag}_{platform.machine()}"]
        key = hashlib.sha256(repr((self._command, constraints.read_text())).encode())
        self._command += ["--constraint", constraints]
        self._cache = cache
        self.folder = cache / "wheels" / key.hexdigest()[:16]
        self._part = self.folder.with_suffix(".part")
        self._job: Job | None = None

    def __enter__(self) -> Wheels:
        if not self.folder.exists():
            shutil.rmtree(self.folder.parent, ignore_errors=True)
            tools = self._cache / "venv"
            if not (tools / "bin" / "pip").exists():
                venv.create(tools, with_pip=True, clear=True)
            self._job = Job([tools / "bin" / "pip", *self._command, "--dest", self._part])
        return self

    def __exit__(self, *error: object) -> None:
        if self._job is not None:
            self._job.__exit__(*error)

    def finish(self) -> str:
        if self._job is not None:
            self._job.result(limit=600)
            self._part.rename(self.folder)
        return f"{len(list(self.folder.iterdir()))} files"


def _version() -> str:
    return _found(r'^__version__ = "(.+)"', ROOT / "molecule_hermes" / "__init__.py")


def _found(pattern: str, file: Path) -> str:
    found = re.search(pattern, file.read_text(), re.M)
    if found is None:
        raise CheckError(f"{file} has no {pattern}")
    return found[1]


def _revision() -> str:
    told = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return told.stdout.strip() or "unknown"
