"""Messages that a peer sends again: they join their task instead of running twice."""

from __future__ import annotations

from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import resolve_user_scope
from a2a.types import Message, Task

from molecule_hermes.protocol.incoming import without_bytes
from molecule_hermes.storage.contents import content_digest
from molecule_hermes.turns.idempotency import IdempotencyIndex

__all__ = ["Resends"]


class Resends:
    """The idempotency index in A2A's terms."""

    def __init__(self, index: IdempotencyIndex) -> None:
        self._index = index

    def find(self, message: Message, context: ServerCallContext) -> str | None:
        """Returns the task that the message began, if it is a resend."""
        return self._index.find(*_ids(message, context), self._digest(message))

    def claim(
        self, message: Message, task_id: str, context_id: str, context: ServerCallContext
    ) -> None:
        """Assigns the message to a task. A resend may name the task's context, or name none as the
        message itself did."""
        peer, digest = resolve_user_scope(context), self._digest(message)
        for known_as in {message.context_id, context_id}:
            self._index.claim(peer, known_as, message.message_id, task_id, digest)

    def is_resent_answer(self, message: Message, task: Task, context: ServerCallContext) -> bool:
        if not self._index.enabled or not message.message_id:
            return False
        peer, digest = resolve_user_scope(context), self._digest(message)
        if self._index.find(peer, task.context_id, message.message_id, digest) == task.id:
            return True
        # The history also holds answers that were sent before the bridge started.
        return any(
            known.message_id == message.message_id and content_digest(known) == digest
            for known in task.history
        )

    def claim_answer(self, message: Message, task: Task, context: ServerCallContext) -> None:
        peer, digest = resolve_user_scope(context), self._digest(message)
        self._index.claim(peer, task.context_id, message.message_id, task.id, digest)

    def _digest(self, message: Message) -> str:
        return content_digest(without_bytes(message)) if self._index.enabled else ""


def _ids(message: Message, context: ServerCallContext) -> tuple[str, str, str]:
    return resolve_user_scope(context), message.context_id, message.message_id
