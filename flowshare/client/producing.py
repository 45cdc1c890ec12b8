"""What a producer is to those who send: the methods that `Producer` and `KafkaProducer` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, overload

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from flowshare.client.batching import RecordMetadata
    from flowshare.client.errors import ClientError
    from flowshare.client.message import Message


class RecordProducer(Protocol):
    """Sends records; all methods are called on one event loop. What they raise stands at `Producer`."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are not confirmed yet."""
        ...

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record and return when it is confirmed; waits while the buffer is full."""
        ...

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue one record; the future is done when it is confirmed or failed."""
        ...

    @overload
    async def send_many(
        self, topic: str, items: Iterable[Message | bytes | None], *, return_exceptions: Literal[False] = False
    ) -> list[RecordMetadata]: ...
    @overload
    async def send_many(
        self, topic: str, items: Iterable[Message | bytes | None], *, return_exceptions: Literal[True]
    ) -> list[RecordMetadata | ClientError]: ...

    def allow(self, record_bytes: int) -> None:
        """Take records of up to so many bytes from now on, where `request_bytes_max` is less."""

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until what is queued is settled."""

    async def close(self, timeout_s: float = 10.0) -> None:
        """Flush for up to `timeout_s` seconds, fail what is left, close."""
