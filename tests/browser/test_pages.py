"""The browser that tests of pages use: what it shows, what it does not let out, what it tells, and that it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from aiohttp import web

from flowshare.dev.processes import process
from tests.browser.access import assert_usable, barriers
from tests.browser.chromium import NAMED
from tests.browser.pages import SHOTS, Browser, Look, browsing, each_look, on_its_loop, problems, shot
from tests.kafka.fixtures import ROOT
from tests.kafka.test_fixture import inner
from tests.waiting import blocking_until

GOOD = """<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>Groups</title>
<style>
:root { color-scheme: light dark; font: 16px sans-serif }
body { background: light-dark(#fff, #181818); color: light-dark(#222, #ddd) }
input { width: 100%; box-sizing: border-box }
.table { overflow-x: auto }
td { white-space: nowrap; padding: 0 4em; font: 14px monospace }
</style>
<h1>Groups</h1>
<label>Name <input id="name"></label>
<label><input type="radio" name="by" checked> by name</label> <label><input type="radio" name="by"> by age</label>
<button onclick="this.textContent = 'Paused'">Pause</button> <a href="/help">Help</a>
<div class="table" tabindex="0">
<table><tr><td>orders</td><td>1,234 ✓</td><td>→ 0.5 s</td><td>stuck</td></tr></table>
</div>
"""
BAD = """<!doctype html><html lang="en"><title>Groups</title>
<style>#pale { color: #aaa } a { outline: none } #wide { width: 2000px }</style>
<h1>Groups</h1>
<p id="pale">12 records</p> <button></button> <input id="nameless"> <a href="/help">Help</a>
<a id="skipped" href="/more">More</a>
<div id="wide">wide</div>
<script>
const skipped = document.getElementById('skipped');
skipped.onfocus = () => document.querySelector('button').focus();
</script>
"""
OUTSIDE = {
    "a picture": "document.body.append(Object.assign(new Image(), {src: 'http://pictures.test/a.png', onerror: done}))",
    "a secure fetch": "fetch('https://api.test/v1').catch(done)",
    "an address": "fetch('http://192.0.2.1/').catch(done)",
    "another name of this machine": "fetch('http://localhost:8000/').catch(done)",
    "a web socket": "new WebSocket('ws://live.test/').onclose = done",
    "a peer": "const server = {urls: 'turn:192.0.2.8?transport=tcp', username: 'a', credential: 'b'};"
    "const peer = new RTCPeerConnection({iceServers: [server]}); peer.createDataChannel('x');"
    "peer.onicegatheringstatechange = () => peer.iceGatheringState === 'complete' && done();"
    "peer.createOffer().then(offer => peer.setLocalDescription(offer))",
    "a form": "document.body.insertAdjacentHTML('beforeend', '<iframe name=f></iframe><form target=f method=post "
    "action=https://form.test/></form>'); document.forms[0].submit(); document.querySelector('iframe').onload = done",
}
HOSTS = {
    "a picture": "http://pictures.test/a.png",
    "a secure fetch": "api.test:443",
    "an address": "http://192.0.2.1/",
    "another name of this machine": "http://localhost:8000/",
    "a web socket": "live.test:80",
    "a peer": "192.0.2.8:3478",
    "a form": "form.test:443",
}


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncGenerator[str]:
    """A server of two pages on the loopback, on the browser's loop."""

    async def page(request: web.Request) -> web.Response:
        policy = {"Content-Security-Policy": "script-src 'unsafe-inline'"}
        found = {"good": GOOD, "bad": BAD}[request.match_info["name"]]
        return web.Response(text=found, content_type="text/html", headers=policy)

    app = web.Application()
    app.router.add_get("/{name}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    listening = web.TCPSite(runner, "127.0.0.1", 0)
    await listening.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@on_its_loop
@each_look
async def test_a_page_is_seen_at_each_width_and_in_each_scheme(browser: Browser, site, look, tmp_path, monkeypatch):
    monkeypatch.setenv(SHOTS, os.environ.get(SHOTS) or str(tmp_path))

    async with browser.page(f"{site}/good", look) as page:
        await page.click("button")
        file = await shot(page, "the kit")

        assert await page.inner_text("button") == "Paused"
        assert await page.evaluate("innerWidth") == look.width
        shown = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert shown == {"light": "rgb(255, 255, 255)", "dark": "rgb(24, 24, 24)"}[look.scheme]

    assert file is not None
    assert file.name == f"the-kit-{look}.png"
    assert file.read_bytes().startswith(b"\x89PNG")


@on_its_loop
async def test_no_picture_is_taken_where_none_is_asked_for(browser: Browser, site, monkeypatch):
    monkeypatch.delenv(SHOTS, raising=False)

    async with browser.page(f"{site}/good") as page:
        assert await shot(page, "the kit") is None


@on_its_loop
@each_look
async def test_a_usable_page_has_no_barriers(browser: Browser, site, look):
    async with browser.page(f"{site}/good", look) as page:
        await assert_usable(page)
        await assert_usable(page)  # and looking leaves it as it was


@on_its_loop
async def test_of_a_page_with_very_many_stops_the_first_are_looked_at(browser: Browser, site, monkeypatch):
    monkeypatch.setattr("tests.browser.access.MOST_STOPS", 2)

    async with browser.page(f"{site}/good") as page:
        await assert_usable(page)


@on_its_loop
async def test_barriers_are_told(browser: Browser, site):
    async with browser.page(f"{site}/bad", Look(400)) as page:
        found = await barriers(page)

    assert {line.partition(":")[0] for line in found} == {"color-contrast", "button-name", "label", "overflow", "focus"}
    told = "\n".join(found)
    assert 'nothing shows that this has the focus: <a href="/help">' in told
    assert 'Tab does not come by this: <a id="skipped"' in told
    assert '<div id="wide">' in told


@on_its_loop
@pytest.mark.parametrize("what", OUTSIDE)
async def test_a_request_that_leaves_the_machine_is_stopped_and_told(browser: Browser, site, what):
    with pytest.raises(AssertionError) as error:
        async with browser.page(f"{site}/good") as page:
            await page.evaluate("script => new Promise(done => eval(script))", OUTSIDE[what])

    assert f"the page asked for {HOSTS[what]}, which is not on 127.0.0.1" in str(error.value)


@on_its_loop
async def test_another_name_of_this_machine_may_be_allowed(browser: Browser, site):
    url = f"{site}/good".replace("127.0.0.1", "localhost")

    async with browser.page(f"{site}/good", also=["localhost"]) as page:
        assert await page.evaluate("url => fetch(url, {mode: 'no-cors'}).then(found => found.type)", url) == "opaque"


@on_its_loop
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("console.error('no group')", "logged an error: no group"),
        ("setTimeout(() => { throw new Error('no such share') })", "threw an error: Error: no such share"),
        ("setTimeout(() => alert('hello'))", "opened a dialog: alert 'hello'"),
        ("fetch('/missing')", "logged an error: Failed to load resource: the server responded with a status of 500"),
    ],
)
async def test_what_a_page_does_wrong_fails_the_test_unless_it_is_expected(browser: Browser, site, script, told):
    async def look(**options):
        async with browser.page(f"{site}/good", **options) as page:
            await page.evaluate("script => { eval(script) }", script)
            await page.evaluate("new Promise(done => setTimeout(done))")
            await page.evaluate("fetch('/good').then(found => found.text())")

    with pytest.raises(AssertionError) as error:
        await look()
    assert f"the page {told}" in str(error.value)

    await look(expect=[told])


@on_its_loop
async def test_a_page_that_crashes_is_told_and_the_next_one_opens(browser: Browser, site):
    async with browser.page(f"{site}/good", expect=["crashed: "]) as page:
        session = await page.context.new_cdp_session(page)
        async with page.expect_event("crash"):
            crash = asyncio.ensure_future(session.send("Page.crash"))  # nobody is left to answer
        crash.cancel()

    async with browser.page(f"{site}/good") as page:
        assert await page.title() == "Groups"


@on_its_loop
async def test_a_test_that_fails_in_a_page_says_what_the_page_did_wrong(browser: Browser, site, tmp_path, monkeypatch):
    monkeypatch.setenv(SHOTS, str(tmp_path))

    async def fail() -> None:
        async with browser.page(f"{site}/good") as page:
            await page.evaluate("console.error('no group')")
            raise ValueError("the test's own")

    with pytest.raises(ValueError, match="the test's own") as error:
        await fail()

    assert [note.partition(" (")[0] for note in error.value.__notes__] == ["the page logged an error: no group"]
    assert [file.name.startswith("failed-test_a_test_that_fails") for file in tmp_path.iterdir()] == [True]


@on_its_loop
async def test_the_processes_of_a_browser_are_gone_after_it(browser: Browser, site):
    async with browsing() as mine, mine.page(f"{site}/good"):
        tree = mine.processes()
        assert len(tree) >= 3
        assert not {one.pid for one in tree} & {one.pid for one in browser.processes()}

    assert [one.pid for one in tree if one.runs] == []


BROWSES = """
    import asyncio
    from tests.browser.pages import browsing

    async def main():
        async with browsing() as browser, browser.page("about:blank"):
            print(*(one.pid for one in browser.processes()), flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


def test_a_run_that_is_killed_leaves_no_browser(browser: Browser):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BROWSES)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        tree = [process(int(pid)) for pid in run.stdout.readline().split()]
        run.send_signal(signal.SIGKILL)

    assert len(tree) >= 3
    blocking_until(lambda: [one for one in tree if one is not None and one.runs], "its end", good=lambda left: not left)


def test_what_is_expected_has_to_come():
    told = ["logged an error: one", "logged an error: two"]

    assert problems(told, ["one", "two"]) == []
    assert problems(told, ["one"]) == ["the page logged an error: two"]
    assert problems([], ["one"]) == ["expected, and did not come: one"]


LOOKS_AT_A_PAGE = """
    from tests.browser.pages import on_its_loop

    @on_its_loop
    async def test_that_looks_at_a_page(browser):
        raise AssertionError("it ran")
"""


@pytest.mark.slow
def test_without_a_browser_a_test_of_a_page_is_skipped_on_a_laptop(tmp_path):
    done = inner(tmp_path, LOOKS_AT_A_PAGE, **{NAMED: str(tmp_path / "chrome")})

    assert done.returncode == 0, done.stdout
    assert "does not run here" in done.stdout
    assert "1 skipped" in done.stdout


@pytest.mark.slow
def test_without_a_browser_a_test_of_a_page_fails_in_ci(tmp_path):
    done = inner(tmp_path, LOOKS_AT_A_PAGE, **{NAMED: str(tmp_path / "chrome"), "CI": "true"})

    assert done.returncode == 1, done.stdout
    assert "in CI nothing is skipped" in done.stdout
