"""The outputs that a consumer writes in one step with its commits: records by topic, packed as by a producer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from flowshare.client.arguments import check_argument
from flowshare.client.producer.channel import TopicPlace
from flowshare.client.producer.message import Message, items_of
from flowshare.client.producer.outputs import OutputBatches
from flowshare.client.settings import ProducerSettings

if TYPE_CHECKING:
    import uuid

    from flowshare.protocol.messages import SettleOutput

Outputs = Mapping[str, Iterable[Message | bytes | None]]


def messages_of(outputs: Outputs) -> dict[str, list[Message]]:
    """Outputs as they are given, topic by topic. Raises: TypeError."""
    check_argument("the outputs", outputs, Mapping)
    return {
        topic: [one if isinstance(one, Message) else Message(one) for one in items_of(items, topic)]
        for topic, items in outputs.items()
    }


def packed(
    messages: Mapping[str, Sequence[Message]],
    topics: Mapping[str, tuple[int, uuid.UUID | None]],
    *,
    now_ms: int,
    spread: int,
) -> list[SettleOutput]:
    """Record batches of them. topics: partitions and id of each. Raises: RecordTooLarge, ServerError, TypeError."""
    places = {topic: TopicPlace(*place) for topic, place in topics.items()}
    batches = OutputBatches[str](places, settings=ProducerSettings(), batch_bytes={}, now_ms=now_ms, spread=spread)
    for topic, some in messages.items():
        for message in some:
            batches.add(topic, topic, message, batches.check(topic, message))
    return [one.output for one in batches.build()]
