"""A browser's pages, as tests look at them: `Browser.page` opens one, and ends with what the page did wrong.

A page fails the test that looks at it when it asks for anything outside of 127.0.0.1, logs an error, throws one, opens
a dialog or crashes. What a test expects of these it names, and then it has to come.

Whatever would leave 127.0.0.1 goes through a proxy that the page has for itself and that answers nobody (`Fence`): so
it stays here, whoever asks for it (a tag, a script, a socket, the browser itself), and is told.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from flowshare.dev import DevFailure
from flowshare.dev.processes import Process, process
from tests.browser.chromium import chromium

if TYPE_CHECKING:
    from playwright.async_api import Browser as Chrome
    from playwright.async_api import BrowserContext, Page

SHOTS: Final = "FLOWSHARE_TEST_SHOTS"
LIMIT_MS: Final = 60_000
"""Of each step in a page, as of all that tests wait for."""
END_LIMIT_S: Final = 20.0
MOST_TOLD: Final = 50
HERE: Final = "127.0.0.1"
ARGUMENTS: Final = (
    "--no-sandbox",  # it does not run as root with one, and what it shows is our own
    "--no-zygote",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # What goes past a proxy.
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
)


@dataclass(frozen=True)
class Look:
    """How somebody looks at a page. width, height: pixels. scheme: "light" or "dark"."""

    width: int = 1280
    scheme: str = "light"
    height: int = 900

    def __str__(self) -> str:
        return f"{self.width}-{self.scheme}"


LOOKS: Final = tuple(Look(width, scheme) for width in (1280, 400) for scheme in ("light", "dark"))
each_look = pytest.mark.parametrize("look", LOOKS, ids=str)
"""A test with this mark is run at both widths, light and dark, with the `Look` as its argument `look`."""
on_its_loop = pytest.mark.asyncio(loop_scope="session")
"""The mark of tests (and `loop_scope` of async fixtures) that use the browser: it has one loop for the whole run."""


class Fence:
    """A proxy that ends whatever wants to leave, and remembers what that was."""

    def __init__(self) -> None:
        self.stopped: list[str] = []
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._stop, HERE, 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._open):  # those that never asked for anything
            writer.close()
        await self._server.wait_closed()

    def proxy(self, also: Collection[str]) -> Any:
        """The setting of a browser's context. Without the first word it would find its own way to the loopback."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return {"server": f"http://{HERE}:{port}", "bypass": ",".join(["<-loopback>", HERE, *also])}

    async def _stop(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(OSError, ValueError):  # the line is too long, or it went away
            words = (await reader.readline()).decode(errors="replace").split()
            told = f"asked for {' '.join(words[1:2])}, which is not on {HERE}"
            if words and told not in self.stopped and len(self.stopped) < MOST_TOLD:
                self.stopped.append(told)
        self._open.discard(writer)
        writer.close()


class Browser:
    """A browser that runs, for many pages one after the other or beside each other; each begins with no cookies."""

    def __init__(self, chrome: Chrome, drivers: Collection[int]) -> None:
        self._chrome = chrome
        self._drivers = drivers

    def processes(self) -> list[Process]:
        """Those that are there for it now: Playwright's driver, and below that Chromium's."""
        return [one for driver in self._drivers for one in (process(driver), *descendants(driver)) if one is not None]

    @asynccontextmanager
    async def page(
        self,
        url: str,
        look: Look = LOOKS[0],
        *,
        expect: Collection[str] = (),
        also: Collection[str] = (),
        **context: Any,
    ) -> AsyncGenerator[Page]:
        """Playwright's page with this URL loaded. End it before the server that it came from ends.

        expect: parts of what the page may do wrong, each of which then has to come (`problems` names them). also: names
        of this machine that it may ask besides 127.0.0.1, as localhost. context: of `browser.new_context`.
        Raises: AssertionError at the end, with all that was not expected.
        """
        told: list[str] = []
        async with Fence() as fence:
            opened = await self._chrome.new_context(
                viewport={"width": look.width, "height": look.height},
                color_scheme="dark" if look.scheme == "dark" else "light",
                proxy=fence.proxy(also),
                locale="en-US",
                timezone_id="UTC",
                **context,
            )
            try:
                opened.set_default_timeout(LIMIT_MS)
                _listen(opened, told)
                page = await opened.new_page()
                try:
                    await page.goto(url)
                    yield page
                    await _settled(page)
                except Exception as error:
                    for line in (*fence.stopped, *told):
                        error.add_note(f"the page {line}")
                    await _last_shot(page)
                    raise
            finally:
                await opened.close()
        wrong = problems([*fence.stopped, *told], expect)
        assert not wrong, "\n".join([f"{url} at {look}:", *wrong])


def problems(told: Collection[str], expect: Collection[str]) -> list[str]:
    """Return the page's unexpected messages, and the expected messages that did not come."""
    found = [f"the page {line}" for line in told if not any(part in line for part in expect)]
    return found + [f"expected, and did not come: {part}" for part in expect if not any(part in line for line in told)]


async def shot(page: Page, name: str) -> Path | None:
    """A picture of the whole page in the directory that FLOWSHARE_TEST_SHOTS names: NAME-WIDTH-SCHEME.png.

    Without that variable nothing is done.
    """
    folder = os.environ.get(SHOTS)
    if not folder:
        return None
    dark = await page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    width = (page.viewport_size or {"width": 0})["width"]
    file = Path(folder) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{width}-{'dark' if dark else 'light'}.png"
    await page.screenshot(path=file, full_page=True, animations="disabled")
    return file


@asynccontextmanager
async def browsing() -> AsyncGenerator[Browser]:
    """A browser, on this loop; with its end all its processes are gone. Raises: DevFailure when it cannot be had."""
    from playwright.async_api import Error, async_playwright

    found = chromium()
    before = children(os.getpid())
    playwright = await async_playwright().start()
    drivers = [pid for pid in children(os.getpid()) - before if b"playwright" in _command(pid)]
    try:
        try:
            chrome = await playwright.chromium.launch(
                executable_path=found.program,
                args=ARGUMENTS,
                env={**os.environ, **found.environment},
                proxy={"server": f"http://{HERE}:9"},  # nobody's: a page's own is given to it
                # The signals are pytest's, which ends all that it started.
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except Error as error:
            raise DevFailure(f"{found.program} does not start: {error}") from error
        browser = Browser(chrome, drivers)
        yield browser
        tree = browser.processes()
        await chrome.close()
    finally:
        await playwright.stop()
    left = [one for one in tree if not one.gone_within(END_LIMIT_S)]
    for one in left:
        one.end(0)
    assert not left, f"processes of the browser were still there after its end: {[one.pid for one in left]}"


def children(parent: int) -> set[int]:
    """The numbers of a process's children; on Linux, elsewhere none are found."""
    return {pid for pid, its_parent in _parents().items() if its_parent == parent}


def descendants(ancestor: int) -> list[Process]:
    """The children of a process, and theirs; on Linux, elsewhere none are found."""
    parents, found, young = _parents(), list[int](), {ancestor}
    while young:
        young = {pid for pid, parent in parents.items() if parent in young}
        found += young
    return [one for one in map(process, found) if one is not None]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # The name of the program stands in brackets and may hold anything.
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    return parents


def _listen(context: BrowserContext, told: list[str]) -> None:
    def tell(what: str) -> None:
        if len(told) < MOST_TOLD:
            told.append(what)

    def on_console(message: Any) -> None:
        if message.type in {"error", "assert"}:
            tell(f"logged an error: {message.text} ({message.location.get('url') or message.page.url})")

    context.on("console", on_console)
    context.on("weberror", lambda error: tell(f"threw an error: {_first_lines(error.error)}"))
    context.on("dialog", _dismissing(tell))
    context.on("page", lambda page: page.on("crash", lambda _: tell(f"crashed: {page.url}")))


def _first_lines(error: Any) -> str:
    """The error, and where in the page's script it came from."""
    return " ".join(line.strip() for line in (error.stack or str(error)).splitlines()[:2])


def _dismissing(tell: Callable[[str], None]) -> Callable[[Any], Any]:
    async def dismiss(dialog: Any) -> None:
        tell(f"opened a dialog: {dialog.type} {dialog.message!r}")
        await dialog.dismiss()

    return dismiss


async def _settled(page: Page) -> None:
    """Wait until all messages of the page have arrived: its answers keep the order of its messages."""
    from playwright.async_api import Error

    with suppress(Error):  # the page crashed, which is told, or the test closed it
        async with asyncio.timeout(LIMIT_MS / 1000):
            await page.evaluate("0")


async def _last_shot(page: Page) -> None:
    from playwright.async_api import Error

    with suppress(Error):
        await shot(page, "failed-" + os.environ.get("PYTEST_CURRENT_TEST", "page").rpartition("::")[2].split(" ")[0])
