"""The cutting of a slot's log at its start, and the entries to write again before it.

A reader begins at the log's start and needs a claim there, so the log is cut at claims only, and only at one before
which no key's last write lies. Its owner gets there in small steps, one at a time:

    the log is large, and cutting it at the present claim frees little → claim again
    keys were last written before the present claim                    → write some of them again, the oldest first
    neither                                                            → delete the records before the present claim

With a log of at least `growth` times its table, writing everything again costs at most 1/growth of the bytes written. A
key is written again with the table's value, so no write may be under way meanwhile (`fleet.state.writing`).
"""

from __future__ import annotations

from dataclasses import dataclass

from flowshare.slots.records import Entry
from flowshare.slots.replay import SlotReader


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneLimits:
    """Limits for cutting a slot's log, and the size of a step of writing again.

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
    """True if the slot's log is large enough to be cut."""
    return bool(reader.claims) and reader.kept_bytes > _allowed(reader, limits)


def next_step(reader: SlotReader, limits: PruneLimits) -> Step | None:
    """Return the owner's next step; None: nothing to do for now."""
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
    """Return the allowed size of the log, in bytes."""
    return max(limits.log_bytes, limits.growth * reader.table.size_bytes)
