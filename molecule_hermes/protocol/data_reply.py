"""Turns the agent's answer into the data that its peer asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from a2a.helpers import new_data_part

from molecule_hermes.errors import BadRequest
from molecule_hermes.protocol import status as updates
from molecule_hermes.protocol.active_turn import ActiveTurn
from molecule_hermes.protocol.schema_process import SchemaProcesses, UnusableSchemaError
from molecule_hermes.protocol.structured_output import StructuredOutput
from molecule_hermes.text import shorten
from molecule_hermes.turns.model import Canceled, Completed, End, Failed, Notice, Usage

__all__ = ["DataReplies"]

_JSON = "application/json"
_SHOWN = 1000


class DataReplies:
    """Validates answers. The agent gets one chance to correct an answer that is not valid."""

    def __init__(self, schemas: SchemaProcesses) -> None:
        self._schemas = schemas

    async def settle(
        self,
        active: ActiveTurn,
        answered: End,
        relay: Callable[[ActiveTurn], Awaitable[End]],
    ) -> End:
        """Returns the turn's end: its answer is in `active.data`, or it failed and its text is the
        reply. `relay` sends `active.turn` to Hermes and returns how that ended.

        The turn may be a repair already: that of a bridge that was restarted meanwhile.
        """
        output = active.output
        if output is None or not isinstance(answered, Completed):
            return answered
        problem = await self._take(active, output, answered.text)
        if not problem:
            return answered
        if output.is_repair(active.turn):
            return await _refuse(active, answered.text, problem)
        if active.run.stop is not None:
            return Canceled()
        remark = "the answer does not have the form that was asked for; the agent corrects it"
        await updates.notice(active.updater, Notice(remark, kind="retrying"))
        active.run.go_on()
        active.turn = output.repair(active.turn, problem)
        active.queue.seq = -1  # the events of this message are numbered anew
        second = await relay(active)
        if not isinstance(second, Completed):
            await active.reply.add(answered.text)
            return second
        second = replace(second, usage=_sum(answered.usage, second.usage))
        return await self.settle(active, second, relay)

    async def _take(self, active: ActiveTurn, output: StructuredOutput, text: str) -> str:
        """Takes the data in the text as the answer, or returns what is wrong with it."""
        try:
            verdict = await self._schemas.judge(output.schema, text, active.turn.peer)
        except UnusableSchemaError as error:
            await active.reply.add(text)
            raise BadRequest(
                f"the answer cannot be checked against the schema: {error}",
                hint="send a simpler schema; the answer is in the reply, as text",
            ) from error
        if "value" in verdict:
            active.data = new_data_part(verdict["value"], media_type=_JSON)
        return str(verdict.get("problem", ""))


def _sum(first: Usage | None, second: Usage | None) -> Usage | None:
    return first + second if first is not None and second is not None else first or second


async def _refuse(active: ActiveTurn, text: str, problem: str) -> Failed:
    await active.reply.add(text)
    return Failed(
        BadRequest(
            f"the agent's answer does not have the form that was asked for: "
            f"{shorten(problem, _SHOWN)}",
            hint="ask in other words or for less; the answer is in the reply, as text",
        )
    )
