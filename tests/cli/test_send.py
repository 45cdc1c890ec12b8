"""`flowshare send` sends what it has read, while it reads on."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowshare.cli.send import _ROUND, _as_read


def slow(lines: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
    """As standard input of a program that writes now and then."""
    while (line := lines.get()) is not None:
        yield line


def test_a_line_is_sent_before_the_next_one_is_written() -> None:
    async def main() -> None:
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        batches = _as_read(slow(lines), asyncio.Event())
        for number in range(3):
            lines.put(b"%d" % number)
            assert await asyncio.wait_for(anext(batches), 10) == [b"%d" % number]
        lines.put(None)
        assert [batch async for batch in batches] == []

    asyncio.run(main())


def test_what_is_there_is_sent_together_and_in_order() -> None:
    values = [b"%d" % number for number in range(3 * _ROUND + 1)]

    async def main() -> list[list[bytes]]:
        return [batch async for batch in _as_read(iter(values), asyncio.Event())]

    batches = asyncio.run(main())

    assert [value for batch in batches for value in batch] == values
    assert max(map(len, batches)) <= _ROUND


def test_input_that_cannot_be_read_ends_the_command_with_its_error() -> None:
    def broken() -> Iterator[bytes]:
        yield b"one"
        raise OSError("the disk is gone")

    async def main() -> None:
        async for batch in _as_read(broken(), asyncio.Event()):
            assert batch == [b"one"]

    with pytest.raises(OSError, match="the disk is gone"):
        asyncio.run(main())


def test_an_interrupt_ends_the_reading_with_what_was_read() -> None:
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    async def main() -> list[bytes]:
        interrupt = asyncio.Event()
        batches = _as_read(slow(lines), interrupt)
        lines.put(b"one")
        found = list(await asyncio.wait_for(anext(batches), 10))
        interrupt.set()
        return found + [value async for batch in batches for value in batch]

    assert asyncio.run(main()) == [b"one"]
    lines.put(None)  # the thread ends


@pytest.mark.slow
def test_ctrl_c_at_an_idle_pipe_says_one_word_and_the_lines_before_it_are_sent(tmp_path: Path) -> None:
    script = """
        import sys, flowshare.cli.send as send
        real = send._as_read

        async def as_read(values, interrupt):
            async for batch in real(values, interrupt):
                yield batch
                print("handed over", file=sys.stderr, flush=True)

        send._as_read = as_read
        from flowshare.cli import main
        main(sys.argv[1:])
    """
    reading, writing = os.pipe()
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(script),
            "send",
            "t",
            "--lines",
            "--broker",
            f"embedded://{tmp_path}/log",
        ],
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as sender:
        os.close(reading)
        os.write(writing, b"x\n")
        assert sender.stderr is not None
        assert next(line for line in sender.stderr if "handed over" in line)  # it waits at the pipe again
        sender.send_signal(signal.SIGINT)
        out, err = sender.communicate(timeout=60)
        os.close(writing)

    assert (sender.returncode, out) == (130, "sent to t-0@0\n"), err
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    assert "Fatal" not in err
