"""A process that leads slot 0 and writes a counter, one write after the other, several under way.

    python -m tests.fleet.slot_child <bootstrap> <topic>

It prints a line for each event: `led <epoch>`, `confirmed <n>`, `lost <why>`.
"""

from __future__ import annotations

import asyncio
import sys

from flowshare.log.base import NotLed
from tests.fleet.slots import real_fleet

WRITERS = 8


class Address:
    """Stand-in for a broker, with the one attribute that `real_fleet` needs."""

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap


async def main(bootstrap, topic):
    async with real_fleet(Address(bootstrap), topic) as fleet:
        slot = await fleet.process("a").slot()
        print("led", slot.epoch, flush=True)
        numbers = iter(range(10**9))

        async def write():
            for number in numbers:
                await slot.write([(b"g/counter", b"%d" % number)])
                print("confirmed", number, flush=True)

        try:
            await asyncio.gather(*(write() for _ in range(WRITERS)))
        except NotLed as error:
            print("lost", error, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
