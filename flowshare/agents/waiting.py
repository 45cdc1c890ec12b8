"""What a fetch brings from the retry topic: records that are due become chunks, the others are held until they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.agents.acks import REJECT
from flowshare.agents.chunk import Chunk
from flowshare.agents.retry_topic import Origin, origin_of, retry_topic

if TYPE_CHECKING:
    from flowshare.agents.acks import AckSender
    from flowshare.agents.agent import ShareAgent
    from flowshare.agents.delays import Delays
    from flowshare.agents.held import Holdings
    from flowshare.client.member import Fetched
    from flowshare.clock import Clock
    from flowshare.protocol.decoding import RawRecord

logger = logging.getLogger("flowshare.agents")

DELIVERIES_MAX: Final = 2
"""A waiting record that was delivered more often is written anew."""

Run = tuple[list["RawRecord"], int]


class WaitingRecords:
    """Reads one agent's retry topic; on the service loop."""

    def __init__(
        self,
        agent: ShareAgent,
        acks: AckSender,
        holdings: Holdings,
        delays: Delays,
        feed: Callable[[list[Chunk]], None],
        *,
        clock: Clock,
    ) -> None:
        """feed: hands chunks to the pool."""
        self.topic = retry_topic(agent.group)
        self._agent = agent
        self._acks = acks
        self._holdings = holdings
        self._delays = delays
        self._feed = feed
        self._clock = clock

    def chunks(self, part: Fetched, runs: Sequence[Run], now: float) -> list[Chunk]:
        """What is due, a chunk for each partition that it came from; the rest is held."""
        due: dict[object, tuple[list[Run], dict[int, Origin]]] = {}
        now_ms = self._clock.now_ms()
        for raws, count in runs:
            for raw in raws:
                origin = origin_of(raw.headers)
                if origin is None or origin.topic not in self._agent.topics:
                    self._stray(part, raw)
                elif origin.due_ms > now_ms:
                    chunk = self._chunk(part, [([raw], count)], {raw.offset: origin}, now)
                    self._hold(chunk, raw, origin, again=count > DELIVERIES_MAX)
                else:
                    found, origins = due.setdefault(origin.place, ([], {}))
                    found.append(([raw], count))
                    origins[raw.offset] = origin
        return [self._chunk(part, found, origins, now) for found, origins in due.values()]

    def _chunk(self, part: Fetched, runs: Sequence[Run], origins: dict[int, Origin], now: float) -> Chunk:
        topic = next(iter(origins.values())).topic
        chunk = Chunk(
            self._agent.name,
            topic,
            part.tp,
            runs,
            decode=self._agent.decoder(topic),
            decode_key=self._agent.key_decoder(topic),
            deadline=part.lock_deadline,
            generation=part.generation,
            arrived=now,
            origins=origins,
        )
        chunk.attempts = {offset: chunk.attempt(offset) for offset in origins}
        return chunk

    def _hold(self, chunk: Chunk, raw: RawRecord, origin: Origin, *, again: bool) -> None:
        """Its chunk is held, so its lock is renewed, but no handler gets it before it is due.

        again: write it anew now; workers that died while it waited have nearly used up its deliveries.
        """
        chunk.records.clear()
        self._holdings.add(chunk)

        def run() -> None:
            if raw.offset in chunk.lost:
                self._holdings.decided(chunk, [raw.offset])
            else:
                chunk.records.append(raw)
                self._feed([chunk])

        if again:
            self._delays.rewrite(chunk, chunk.whole(raw), origin.due_ms)
        else:
            self._delays.wait_in_topic(chunk, chunk.whole(raw), origin.due_ms, run)

    def _stray(self, part: Fetched, raw: RawRecord) -> None:
        logger.error(
            "agent=%s record=%s-%d@%d: no record of this agent waits here (its flowshare.retry.* headers are missing, "
            "or name a topic that the agent does not read), rejected; only flowshare writes to a retry topic",
            self._agent.name,
            part.topic,
            part.partition,
            raw.offset,
        )
        self._acks.other((part.tp, part.generation), raw.offset, raw.offset, REJECT, "rejected")
