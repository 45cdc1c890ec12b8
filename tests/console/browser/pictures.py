"""`make console-shots`: the pictures of docs/console.md, taken of what `make console-demo` shows.

`python -m tests.console.browser.pictures FOLDER` writes groups.png, partition.png, stuck.png and letters.png there,
1280 pixels wide. The flights are the same each time; times, rates and ids are not.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.async_api import Page

from flowshare.dev.processes import tail, tied_to_parent
from tests.browser.pages import Browser, Look, browsing
from tests.waiting import until

LIMIT_S = 180.0
STOP_S = 30.0
LOOK = Look(1280, "light", 660)
BYTES_MAX = 150_000
GROUP, TOPIC, DEAD = "flights.bill", "flights", "flights.bill.dlq"
LETTERS = f"letters?topic={DEAD}"
STATES = {
    "groups": ("groups", "#s-flights\\.archive", "tr[id='g-flights.bill'] a[href*=dlq]"),
    "letters": (LETTERS, "[aria-label='kinds of dead letters'] a:text('LookupError')", "[aria-label=letters] tr"),
    "stuck": ("stuck", "[aria-label='blocking records'] tr[id^=k-]", "[aria-label=handlers] tbody tr"),
    "partition": (f"partition?group={GROUP}&topic={TOPIC}&partition=3", ".s-acquired", ".s-delayed"),
}
"""Pictures: a page, and what it has to show before it is taken."""


async def take(folder: Path, browser: Browser) -> list[Path]:
    """The pictures, of a demo that begins and ends with this.

    Raises: AssertionError when the demo does not come to what they show.
    """
    with tempfile.TemporaryDirectory(prefix="flights-") as scratch, demo(Path(scratch)) as (process, log):
        url = await until(lambda: address(process, log), lambda: tail(log), limit_s=LIMIT_S)
        async with browser.page(url, LOOK) as page:
            return [await picture(page, url, name, folder) for name in STATES]


@contextmanager
def demo(scratch: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The demo as a process, and its log."""
    log = scratch / "demo.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.flights", "--console", "--port", "0", "--data", f"{scratch}/log"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=tied_to_parent(),
        )
    try:
        yield process, log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def address(process: subprocess.Popen[bytes], log: Path) -> str | None:
    """Where the console is, as soon as it says so."""
    assert process.poll() is None, f"the demo has ended:\n{tail(log)}"
    found = re.search(r"console: (http://\S+)", log.read_text())
    return found[1] if found else None


async def picture(page: Page, url: str, name: str, folder: Path) -> Path:
    """One of them, as soon as its page shows what it is taken for."""
    path, *wanted = STATES[name]
    await page.goto(f"{url.partition('?')[0]}{path}")
    await until(
        lambda: _shows(page, wanted), lambda: f"{name} does not show what it should", limit_s=LIMIT_S, look_s=0.2
    )
    file = folder / f"{name}.png"
    below = await page.evaluate("document.getElementById('main').getBoundingClientRect().bottom")
    size = {"x": 0, "y": 0, "width": LOOK.width, "height": min(LOOK.height, below)}
    await page.screenshot(path=file, animations="disabled", clip=size)
    return file


async def _shows(page: Page, wanted: list[str]) -> bool:
    return all([await page.locator(one).count() for one in wanted])


async def main(folder: Path) -> None:
    """Take them, and say how large they are."""
    async with browsing() as browser:
        files = await take(folder, browser)
    for file in files:
        size = file.stat().st_size
        assert size < BYTES_MAX, f"{file} has {size} bytes"
        print(f"{file}: {size:,} bytes")


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(main(Path(sys.argv[1])))
