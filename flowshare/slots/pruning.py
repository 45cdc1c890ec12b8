"""When a slot's log is cut at its start, and what has to be written again before.

A reader begins at the log's start and needs a claim there, so the log is cut at claims only, and only at one before
which no key's last write lies. Its owner gets there in steps, each of them small, and one at a time:

    the log is large, and cutting it at the present claim frees little → claim again
    keys were last written before the present claim                    → write some of them again, the oldest first
    neither                                                            → delete what lies before the present claim

With a log of at least `growth` times its table, writing everything again costs at most 1/growth of what was written.
A key is written again with what the table holds, so nothing may be under way meanwhile (`fleet.state.writing`).
"""

from __future__ import annotations

from dataclasses import dataclass

from flowshare.slots.records import Entry
from flowshare.slots.replay import SlotReader


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneLimits:
    """When a slot's log is worth cutting, and how much of it is written again in one step.

    log_bytes: shorter logs are left alone. growth: so are those below this many times the table.

    step_bytes: keys and values that are written again at once.
    """

    log_bytes: int = 64 << 20
    growth: int = 4
    step_bytes: int = 256 << 10


@dataclass(frozen=True, slots=True)
class ClaimAgain:
    """Write a new claim: the log is going to be cut there."""


@dataclass(frozen=True, slots=True)
class WriteAgain:
    """Write these entries again, as they are in the table."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the log below this offset."""

    before: int


Step = ClaimAgain | WriteAgain | Delete


def due(reader: SlotReader, limits: PruneLimits) -> bool:
    """Whether there is something to do."""
    return bool(reader.claims) and reader.kept_bytes > _allowed(reader, limits)


def next_step(reader: SlotReader, limits: PruneLimits) -> Step | None:
    """What the owner does next; None: nothing for now."""
    if not due(reader, limits):
        return None
    claim = reader.claims[-1]
    if claim.log_bytes - reader.claims[0].log_bytes < _allowed(reader, limits) // 2:
        return ClaimAgain()
    oldest = reader.table.oldest()
    if oldest is None or oldest > claim.offset:
        return Delete(claim.offset)
    entries: list[Entry] = []
    size = 0
    for kept in reader.table.older(claim.offset):
        size += len(kept.key) + len(kept.value)
        if entries and size > limits.step_bytes:
            break
        entries.append((kept.key, kept.value))
    return WriteAgain(tuple(entries))


def _allowed(reader: SlotReader, limits: PruneLimits) -> int:
    """How large the log may be."""
    return max(limits.log_bytes, limits.growth * reader.table.size_bytes)
