"""Completion of a KMQ agent's outcomes: an end marker after an accept and its outputs, else none.

accept with sends   -> produce all, confirmed  -> end marker; not confirmed -> no end marker
anything else       ->                            no end marker: the tracker sends the record again, or gives it up
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowshare.agents.feed.acknowledgements import RELEASE
from flowshare.agents.feed.completion import Completion
from flowshare.agents.handler.delivery import about
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.agents.handler.texts import REASON_MAX, clip, named, place_of

if TYPE_CHECKING:
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.protocol.decoding import DecodedRecord, RawRecord

logger = logging.getLogger("flowshare.agents")


class KmqCompletion(Completion):
    """Carries out the outcomes of one KMQ agent."""

    def complete(self, chunk: Chunk, raw: DecodedRecord | RawRecord, outcome: Outcome) -> None:
        """Carry out the outcome."""
        if outcome.kind is OutcomeKind.ACCEPT:
            super().complete(chunk, raw, outcome)
            return
        counter = "released" if outcome.kind is OutcomeKind.RELEASE else "retried"
        self._leave(chunk, raw, outcome.reason, counter, outcome.error)

    def _send_failed(self, chunk: Chunk, record: DecodedRecord, error: BaseException) -> None:
        self._stats.send_failed += 1
        self._leave(chunk, record, f"an output could not be produced: {named(error)}", "retried", error)

    def _leave(
        self,
        chunk: Chunk,
        raw: DecodedRecord | RawRecord,
        reason: str,
        counter: str,
        error: BaseException | None,
    ) -> None:
        """Write no end marker."""
        place = f" ({place_of(error)})" if error is not None else ""
        with about(chunk, raw):
            logger.warning("%s: left to the tracker: %s%s", chunk.where(raw.offset), clip(reason, REASON_MAX), place)
        self._ack(chunk, raw, RELEASE, counter, reason)
