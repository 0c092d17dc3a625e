"""`/handoff molecule_a2a` in Hermes's own CLI, on the Hermes folder of `up`."""

from __future__ import annotations

import sys
from pathlib import Path

from a2a.types import ListTasksRequest

from molecule_hermes.hermes.demo_model import demo_model
from tests.support.operator_hermes import chat, rows, session_in
from tests.support.peers import ask, peer, reply_text, state
from tests.support.stack import environment, up
from tests.support.terminal import AtTerminal

SAID = "the colour of the house is teal"


async def test_hermess_own_command_hands_the_open_session_over(tmp_path: Path) -> None:
    async with demo_model() as url:
        home = tmp_path / "stack" / "hermes"
        environ = environment(
            tmp_path / "stack",
            HERMES_CUSTOM_BASE_URL=url,
            HERMES_INFERENCE_MODEL="molecule-demo",
            HERMES_CUSTOM_API_KEY="a-key-of-the-tests",
            MOLECULE_HERMES_HANDOFF_TO="anonymous/from-the-terminal",
        )
        async with up(environ) as stack:
            session = session_in(await chat(home, SAID))
            env = {**environ, "HERMES_HOME": str(home), "TERM": "xterm"}
            program = str(Path(sys.executable).with_name("hermes"))
            options = ("chat", "--resume", session)
            async with AtTerminal(*options, env=env, program=program) as terminal:
                await terminal.shows("Type your message")
                terminal.type("/handoff molecule_a2a\r")
                await terminal.shows("Handoff complete")
                assert await terminal.ends() == 0
            query = "SELECT handoff_state, handoff_error FROM sessions WHERE id = ?"
            assert rows(home, query, session) == [("completed", None)]
            async with peer(stack.url) as client:
                params = ListTasksRequest(context_id="from-the-terminal", include_artifacts=True)
                (task,) = (await client.list_tasks(params)).tasks
                assert state(task) == "COMPLETED"
                assert SAID in reply_text(task)
                assert SAID in (await ask(client, "And now?", "from-the-terminal")).text
