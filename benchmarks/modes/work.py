"""The work of a handler on a record. The record's number alone decides it, so that each arm does the same."""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.modes.journal import Kind

if TYPE_CHECKING:
    from benchmarks.modes.journal import Journal

SIZE = 100
NUMBER = struct.Struct("<I")
PAD = b"x" * (SIZE - NUMBER.size)


def value_of(record: int) -> bytes:
    """The record's value, 100 bytes with its number in front."""
    return NUMBER.pack(record) + PAD


def number_of(value: bytes) -> int:
    """The number in a value."""
    found: int = NUMBER.unpack_from(value)[0]
    return found


def key_of(record: int, keys: int) -> bytes:
    """The record's key: all equally often, in turns, so that the record before it of its key is known."""
    return b"%06d" % (record % keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """sleep_ms: a handler's time. slow_ms: that of each `slow_every`th record. jitter_ms: a time that differs from
    record to record, up to so much. fail_every: of so many records one fails at its first attempt in a process.
    """

    sleep_ms: float = 0.0
    slow_every: int = 0
    slow_ms: float = 0.0
    jitter_ms: float = 0.0
    fail_every: int = 0

    @property
    def quiet(self) -> bool:
        """Nothing at all is done: only the end is noted."""
        return not (self.sleep_ms or self.slow_every or self.jitter_ms or self.fail_every)

    def slow(self, record: int) -> bool:
        """True if the record is one of the slow ones."""
        return self.slow_every > 0 and record % self.slow_every == self.slow_every // 2

    def fails(self, record: int) -> bool:
        """True if the record is one of those that fail once."""
        return self.fail_every > 0 and record % self.fail_every == self.fail_every // 2

    def seconds(self, record: int) -> float:
        """How long its handler takes."""
        if self.slow(record):
            return self.slow_ms / 1000
        return (self.sleep_ms + (record * 2654435761 % 997 / 997) * self.jitter_ms) / 1000


NO_OP = Work()


class Failed(Exception):
    """A handler that was to fail."""


class Handler:
    """The work of one process."""

    def __init__(self, work: Work, journal: Journal) -> None:
        self._work = work
        self._journal = journal
        self._failed: set[int] = set()

    def agent(self, member: int, *, returns: bool) -> Any:
        """An agent's function. returns: what it got, for a sink."""
        note, ended = self._journal.note, int(Kind.ENDED)

        async def quick(value: bytes) -> None:
            note(number_of(value), member, ended)

        async def full(value: bytes) -> None:
            await self.later(value, member)

        handler = quick if self._work.quiet else full
        if not returns:
            return handler

        async def sending(value: bytes) -> bytes:
            await handler(value)
            return value

        return sending

    async def later(self, value: bytes, member: int) -> None:
        """On an event loop. Raises: Failed."""
        if self._work.quiet:
            self._journal.note(number_of(value), member, Kind.ENDED)
            return
        record, seconds = self._begin(value, member)
        if seconds:
            await asyncio.sleep(seconds)
        self._end(record, member)

    def now(self, value: bytes, member: int) -> None:
        """On a thread. Raises: Failed."""
        if self._work.quiet:
            self._journal.note(number_of(value), member, Kind.ENDED)
            return
        record, seconds = self._begin(value, member)
        if seconds:
            time.sleep(seconds)
        self._end(record, member)

    def _begin(self, value: bytes, member: int) -> tuple[int, float]:
        record = number_of(value)
        self._journal.note(record, member, Kind.BEGUN)
        return record, 0.0 if self._journal.hurried else self._work.seconds(record)

    def _end(self, record: int, member: int) -> None:
        if self._work.fails(record) and record not in self._failed:
            self._failed.add(record)
            self._journal.note(record, member, Kind.FAILED)
            raise Failed(f"record {record} fails once")
        self._journal.note(record, member, Kind.ENDED)
