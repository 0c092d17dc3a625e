"""Which bridge takes deliveries. No I/O."""

from __future__ import annotations

from urllib.parse import urlsplit

from molecule_hermes.wire import Check

__all__ = ["Receiver"]


class Receiver:
    """The bridge that takes new deliveries: the last that said so, until it takes that back."""

    def __init__(self) -> None:
        self.url = ""
        self.bridge = ""
        self._asked = False

    @property
    def takes(self) -> bool:
        return bool(self.url)

    @property
    def declined(self) -> bool:
        """Whether a bridge has said that it takes none, and no other takes them. Until a bridge has
        said anything, as after a start of Hermes, deliveries wait for one."""
        return self._asked and not self.url

    def hear(self, check: Check) -> bool:
        """Whether the bridge that asks is the one that takes deliveries."""
        if check.deliveries:
            self.url, self.bridge = check.callback_url, check.bridge
        elif not self.url or self._is_same(check):
            self.url = self.bridge = ""
        self._asked = True
        return check.deliveries

    def _is_same(self, check: Check) -> bool:
        """A bridge that was restarted has another name, and its address another query."""
        named = bool(check.bridge) and check.bridge == self.bridge
        return named or _place(check.callback_url) == _place(self.url)


def _place(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc, parts.path
