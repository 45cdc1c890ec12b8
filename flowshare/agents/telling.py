"""An observer is told what became of each delivery once that is confirmed: for tests, as it costs time per record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowshare.agents.acks import Confirmed
    from flowshare.agents.runtime import Observer
    from flowshare.protocol.messages import TopicPartition


class Telling:
    """Tells one agent's observer; on the service loop."""

    def __init__(self, agent: str, observer: Observer) -> None:
        self._agent = agent
        self._observer = observer
        self._noted: dict[tuple[TopicPartition, int], tuple[int, str, float]] = {}

    def note(self, tp: TopicPartition, offset: int, attempt: int, reason: str = "", delay_s: float = 0.0) -> None:
        """A record's acknowledgement is about to be sent."""
        self._noted[tp, offset] = (attempt, reason, delay_s)

    def confirmed(self, confirmed: Confirmed) -> None:
        """Acknowledgements were answered."""
        from flowshare.agents.runtime import Settled

        for offset in range(confirmed.ack.first, confirmed.ack.last + 1):
            attempt, reason, delay_s = self._noted.pop((confirmed.tp, offset), (0, "", 0.0))
            partition = confirmed.tp.partition
            settled = Settled(self._agent, confirmed.topic, partition, offset, attempt, confirmed.how, reason, delay_s)
            self._observer(settled)
