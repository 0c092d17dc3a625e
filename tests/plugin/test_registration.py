from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

from molecule_hermes import plugin


def test_the_entry_point_is_a_module_with_register() -> None:
    (found,) = entry_points(group="hermes_agent.plugins", name="molecule-a2a")
    assert found.value == "molecule_hermes.plugin"
    assert found.load() is plugin
    assert callable(plugin.register)


def test_the_plugin_imports_without_hermes_and_without_the_bridge() -> None:
    code = (
        "import sys, molecule_hermes.plugin, molecule_hermes.plugin.endpoints,"
        " molecule_hermes.plugin.hooks\n"
        "roots = {name.split('.')[0] for name in sys.modules}\n"
        "assert not roots & {'gateway', 'tools', 'agent', 'a2a', 'starlette', 'httpx'}, roots\n"
        "ours = {n for n in sys.modules if n.startswith('molecule_hermes.')}\n"
        "rooms = ('plugin', 'wire', 'errors', 'provider_errors', 'text', 'backoff',"
        " 'keyed_tasks')\n"
        "known = tuple('molecule_hermes.' + n for n in rooms)\n"
        "assert all(n.startswith(known) for n in ours), ours\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
