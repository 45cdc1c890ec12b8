"""`flowshare send` sends what it has read, while it reads on."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator

import pytest

from flowshare.cli.send import _ROUND, _as_read


def slow(lines: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
    """As standard input of a program that writes now and then."""
    while (line := lines.get()) is not None:
        yield line


def test_a_line_is_sent_before_the_next_one_is_written() -> None:
    async def main() -> None:
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        batches = _as_read(slow(lines))
        for number in range(3):
            lines.put(b"%d" % number)
            assert await asyncio.wait_for(anext(batches), 10) == [b"%d" % number]
        lines.put(None)
        assert [batch async for batch in batches] == []

    asyncio.run(main())


def test_what_is_there_is_sent_together_and_in_order() -> None:
    values = [b"%d" % number for number in range(3 * _ROUND + 1)]

    async def main() -> list[list[bytes]]:
        return [batch async for batch in _as_read(iter(values))]

    batches = asyncio.run(main())

    assert [value for batch in batches for value in batch] == values
    assert max(map(len, batches)) <= _ROUND


def test_input_that_cannot_be_read_ends_the_command_with_its_error() -> None:
    def broken() -> Iterator[bytes]:
        yield b"one"
        raise OSError("the disk is gone")

    async def main() -> None:
        async for batch in _as_read(broken()):
            assert batch == [b"one"]

    with pytest.raises(OSError, match="the disk is gone"):
        asyncio.run(main())
