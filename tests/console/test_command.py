"""`flowshare console` as it is started: where its history lies, what it says, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowshare.backend.embedded import EmbeddedBackend
from flowshare.console.command import data_folder
from tests.console.world import browser
from tests.waiting import until

pytestmark = pytest.mark.asyncio


async def stored(path: Path) -> None:
    """A storage with a topic."""
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.clock import LoopClock

    backend = EmbeddedBackend(path, clock=LoopClock())
    await backend.start()
    admin = ShareAdmin(lambda: backend.connect("test"), clock=LoopClock())
    await admin.create_topic("orders")
    await admin.close()
    await backend.close()


async def test_history_lies_with_an_embedded_path_that_is_there_and_makes_none(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "shop"

    first = data_folder(f"embedded://{path}")
    assert first.parent.parent == tmp_path / "state" / "flowshare"
    assert not path.exists()
    await stored(path)
    assert data_folder(f"embedded://{path}") == path / "console"
    others = {data_folder(f"kafka://{host}:9092") for host in ("a", "b")}
    assert len(others) == 2


class Started:
    """The command as a process."""

    def __init__(self, path: Path, state: Path, *args: str) -> None:
        self.out = state / "out"
        state.mkdir(exist_ok=True)
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "flowshare.cli",
                    "console",
                    "--broker",
                    f"embedded://{path}",
                    "--port",
                    "0",
                    *args,
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "XDG_STATE_HOME": str(state)},
            )

    @property
    def url(self) -> str:
        found = re.search(r"console: (http://\S+)", self.out.read_text())
        return "" if found is None else found.group(1)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


class Served:
    """Stand-in for a served console, with the attributes that a browser of `world` reads."""

    def __init__(self, url: str) -> None:
        self.server = self
        self.url = url
        self.address = url.split("/")[2]


@pytest.mark.slow
async def test_it_serves_a_path_that_is_made_later_and_keeps_who_did_what_over_a_restart(tmp_path):
    path, state = tmp_path / "shop", tmp_path / "state"
    first = Started(path, state)
    try:
        url = await until(lambda: first.url, lambda: first.out.read_text())
        async with browser(Served(url)) as who:
            said = await until(lambda: who.said("/groups"), good=lambda text: "nothing is stored at" in text)
            assert "a worker, or flowshare topics create" in said
            await stored(path)
            await until(lambda: who.said("/groups"), good=lambda text: "There are no groups yet" in text)
            status, _ = await who.post("/do/pause", {"group": "nope", "page_token": await who.token()})
            assert status == 303
            assert "GROUP_ID_NOT_FOUND" in await who.said("/audit")
            forged = "x\n09:15:02.123 INFO    flowshare.console: all is well\x1b[2J"
            status, said = await who.post("/do/pause", {"group": forged, "page_token": await who.token()})
            assert (status, "control character" in said) == (400, True)
            await who.post("/do/pause", {"group": forged.replace("\n", " ")[:-4], "page_token": await who.token()})
            assert "all is well" in await who.said("/audit")
    finally:
        assert first.end() == 0
    lines = first.out.read_text().splitlines()
    again = Started(path, state, "--data", str(next(state.glob("flowshare/console/*"))))
    try:
        url = await until(lambda: again.url, lambda: again.out.read_text())
        async with browser(Served(url)) as who:
            assert "flowshare groups pause nope" in await who.said("/audit")
    finally:
        assert again.end() == 0
    assert any("pause by operator: flowshare groups pause nope" in line for line in lines)
    assert not any(line.startswith("09:15") or "\x1b" in line for line in lines)
    assert not any("Traceback" in line for line in (*lines, *again.out.read_text().splitlines()))


async def test_a_registry_that_is_no_address_is_refused_with_what_it_has_to_be():
    from flowshare.console.command import schemas_of
    from flowshare.ops import Failure

    with pytest.raises(Failure, match="--registry: Registry takes an address such as"):
        schemas_of("registry:8081", None)
    schemas_of("http://127.0.0.1:1", None).close()
