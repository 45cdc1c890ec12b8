"""`Ledger`: notes the batch of a query that its group accepted last, and so detects a copied or old checkpoint.

Two queries on copies of one checkpoint are the same member to the group, and count their batches alike: each takes over
the other's records, and a sink that knows batches by their numbers skips those that it takes for written. So the
group's side remembers, too. Before a batch is accepted its number and its tag (`Offset`) are noted in the committed
offset of a consumer group without members, named after the member: the number is the offset, the tag its metadata.

| the ledger has, beside what the checkpoint has as committed | the query |
|---|---|
| nothing (it is new, or brokers forgot it after offsets.retention.minutes) | goes on |
| an earlier batch (the accept is still to come) | goes on |
| the same batch with the same tag | goes on |
| the same batch with another tag: another copy ran it | is refused, before it joins |
| a later batch: the checkpoint is older | is refused, before it joins |
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import ServerError
from flowshare.core_errors import FlowshareError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import OffsetToCommit

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.spark.source.ranges import Offset

PREFIX: Final = "flowshare-spark-"

logger = logging.getLogger("flowshare.spark")


class Entry(NamedTuple):
    """A batch of a query. topic: one of the topics of its records, under whose name it is noted."""

    number: int
    tag: str
    topic: str = ""

    @classmethod
    def of(cls, batch: Offset) -> Entry:
        """Return the entry of a batch; without a topic if it has no records."""
        return cls(batch.number, batch.tag, min((one.topic for one in batch.ranges), default=""))


class StrangeCheckpoint(FlowshareError, RuntimeError):
    """The checkpoint is a copy of one that went on, or is older than the group."""


class Ledger:
    """The ledger of one member."""

    def __init__(self, admin: ShareAdmin, group: str, member_id: str) -> None:
        self._admin = admin
        self._group = group
        self.name = PREFIX + member_id
        """The name of the consumer group that keeps the ledger."""
        self._last: tuple[int, str] | None = None
        self._refused = False

    async def check(self, known: Entry) -> None:
        """Check that the checkpoint's committed batch is the one that the group accepted last, or a later one.

        Raises: StrangeCheckpoint, ClientError.
        """
        try:
            found = await self._admin.committed_offsets(self.name)
        except ServerError as error:
            self._not_kept(error)
            return
        offset, tag = max(((one.offset, one.metadata) for one in found), default=(-1, ""))
        if offset < known.number or (offset, tag) == known[:2]:
            return
        what = "is older than the group" if offset > known.number else "is a copy of one that went on"
        raise StrangeCheckpoint(
            f"group {self._group}: the checkpoint of this query {what}: it has batch {known.number} as committed, and "
            f"the group accepted batch {offset} of another copy of it. To go on from here could lose records, so "
            "nothing is read. Start the query with the checkpoint that went on, or with a new one and a new output: it "
            "reads what the group has not finished. To go on with this one all the same, at the price of records that "
            f"are missing or twice in its output, run `flowshare groups delete {self.name}` first"
        )

    async def note(self, batch: Entry) -> None:
        """Note a committed batch that is about to be accepted. Raises: ClientError: it must not be accepted yet."""
        if not batch.number or not batch.topic or batch[:2] == self._last:
            return
        try:
            offset = OffsetToCommit(batch.topic, 0, batch.number, metadata=batch.tag)
            await self._admin.commit_offsets(self.name, [offset])
        except ServerError as error:
            self._not_kept(error)
        self._last = batch[:2]

    def _not_kept(self, error: ServerError) -> None:
        """Warn once that the ledger cannot be kept. Raises: ServerError, if a retry may help."""
        if error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise error
        if not self._refused:
            logger.warning(
                "group %s: which batch was accepted last cannot be noted in consumer group %s, so a copy of the "
                "checkpoint would not be recognised: %s",
                self._group,
                self.name,
                error,
            )
        self._refused = True
