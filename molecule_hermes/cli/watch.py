"""`molecule-hermes watch`: its options, and what is shown."""

from __future__ import annotations

import argparse
import io
import re
import sys
from datetime import UTC, datetime, timedelta

from molecule_hermes.client.watch import Shown
from molecule_hermes.errors import ConfigError

__all__ = ["EPILOG", "add_options", "after_of", "shown_of", "since_of"]

EPILOG = (
    "A delivery is what the agent says after its turn, or unasked. Their texts go to standard "
    "output, everything else to standard error. After a lost connection the command goes on where "
    "it was. Ctrl-C ends it. Exit codes: 1 the agent does not answer, or makes no deliveries; "
    "2 wrong arguments; 130 Ctrl-C."
)
_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--context", default="", metavar="ID", help="only those of this conversation")
    add("--after", default="", metavar="ID", help="go on after this event; 0 shows all")
    add("--since", default="", metavar="TIME", help="from this time, or from 90s, 5m, 2h, 1d ago")
    add("--json", action="store_true", help="print the events as JSON lines")
    add("--quiet", action="store_true", help="print only the texts of deliveries that have ended")


def shown_of(options: argparse.Namespace) -> Shown:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    out, err = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    return Shown(out, err, options.context, options.json, options.quiet)


def after_of(options: argparse.Namespace) -> str:
    """Raises `ConfigError`."""
    after = str(options.after)
    if after and options.since:
        raise ConfigError("--after and --since exclude each other", "use one of them")
    if after and not (after.isascii() and after.isdigit() and len(after) < 20):
        raise ConfigError(f"--after={after!r} is not the id of an event", "use 0 for all")
    return after


def since_of(options: argparse.Namespace) -> str:
    """The time with its zone, which is the local one if none is given. Raises `ConfigError`."""
    since = str(options.since)
    if not since:
        return ""
    try:
        if found := _AGE.fullmatch(since):
            age = timedelta(**{_UNITS[found[2]]: int(found[1])})
            return (datetime.now(UTC) - age).isoformat()
        return datetime.fromisoformat(since).astimezone(UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"--since={since!r} is not a time", "use one like 2026-01-31T12:00, or 2h"
        ) from None
