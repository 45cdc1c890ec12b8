"""Bytes of requests that all connections of a listener hold together, and who is not read from when it is too much.

What counts is what was received: a client cannot reserve by telling a length. When the bytes of unfinished requests
alone fill the budget, one connection at a time is read to the end of its request, else nobody could get on.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """A connection, as the budget sees it."""

    def resume(self) -> None:
        """Read again."""


class Budget:
    """The shared budget of one listener."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[Holder, None] = {}
        self._favoured: Holder | None = None
        self._under_way = 0
        self.held = 0
        """Bytes received and not answered yet."""

    def configure(self, bytes_max: int) -> None:
        """So many bytes may be held from now on."""
        self._bytes_max = bytes_max
        self._release(0)

    def received(self, holder: Holder, count: int) -> bool:
        """Bytes came; whether the holder may be read from further. If not, it is resumed later."""
        self.held += count
        return self.allows(holder)

    def allows(self, holder: Holder) -> bool:
        """Whether the holder may be read from now; if not, it stands in line from now on."""
        if self.held <= self._bytes_max or holder is self._favoured:
            return True
        if self._favoured is None and not self._under_way:
            self._favoured = holder
            return True
        self._waiting[holder] = None
        return False

    def accepted(self, holder: Holder, count: int) -> None:
        """One request of `count` bytes is complete and under way."""
        self._under_way += count
        if holder is self._favoured:
            self._favoured = None

    def finished(self, count: int) -> None:
        """A request of `count` bytes is under way no more."""
        self._under_way -= count
        self._release(count)

    def left(self, holder: Holder, count: int) -> None:
        """The holder is gone, with `count` bytes that never became a request."""
        self._waiting.pop(holder, None)
        if holder is self._favoured:
            self._favoured = None
        self._release(count)

    def _release(self, count: int) -> None:
        self.held -= count
        if not self._waiting:
            return
        if self.held <= self._bytes_max:
            waiting, self._waiting = self._waiting, {}
            for holder in waiting:
                holder.resume()
        elif self._favoured is None and not self._under_way:
            self._favoured = next(iter(self._waiting))
            del self._waiting[self._favoured]
            self._favoured.resume()
