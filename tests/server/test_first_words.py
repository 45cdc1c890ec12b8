"""A broker that says that it listens answers the first client without importing anything first."""

from __future__ import annotations

import subprocess
import sys

import pytest

STORY = """
import asyncio, struct, sys
from flowshare.clock import LoopClock
from flowshare.server.standalone import Address, Standalone, StandaloneOptions

async def main():
    broker = Standalone(StandaloneOptions(data=None, listen=Address.parse("127.0.0.1:0")), clock=LoopClock())
    await broker.start()
    known = set(sys.modules)
    host, _, port = str(broker.address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    asked = struct.pack(">hhih", 18, 3, 1, 1) + b"c\\0" + b"\\x05java" + b"\\x064.4.0" + b"\\0"
    writer.write(struct.pack(">i", len(asked)) + asked)
    size, = struct.unpack(">i", await reader.readexactly(4))
    answer = await reader.readexactly(size)
    assert answer[4:6] == b"\\0\\0", answer
    print(sorted(name for name in set(sys.modules) - known if not name.startswith("flowshare.server.")))
    writer.close()
    await broker.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_the_first_client_of_a_broker_waits_for_no_import():
    done = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stderr, done.stdout.strip()) == ("", "[]")
