"""What is known about the variables: which are secrets, which are misspelt, the README's table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches

from molecule_hermes.config.fields import PREFIX
from molecule_hermes.config.settings import Settings

__all__ = ["secret_variables", "settings_table", "unknown_variables"]


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
