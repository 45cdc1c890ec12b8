"""Pages that change by themselves: what changed is shown, nothing else moves, and nothing is asked in vain."""

from __future__ import annotations

import signal

import pytest
from playwright.async_api import Page

from tests.browser.access import assert_usable
from tests.browser.pages import LOOKS, on_its_loop, shot
from tests.console.browser.world import PAGES, World, each_look_of, order
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)
ARCHIVE = "#g-shop\\.archive"
BACKLOG = f"{ARCHIVE} td:nth-of-type(2)"


async def shown(page: Page, selector: str, text: str) -> None:
    """Wait until a part of the page has this text."""
    await page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)", arg=[selector, text]
    )


async def looks(page: Page, count: int = 2) -> None:
    """Until the page has been asked for again so many times."""
    for _ in range(count):
        async with page.expect_response(page.url):
            pass
    await page.evaluate("new Promise(done => setTimeout(done))")


@on_its_loop
async def test_a_figure_changes_by_itself_and_nothing_else_does(shop: World):
    async with shop.page("groups?find=shop") as page:
        before = await page.inner_text(BACKLOG)
        await page.evaluate("rows = [...document.querySelectorAll('tbody tr')]; where = 'here'")
        await page.fill("input[name=find]", "typed")
        await page.evaluate("document.querySelector('input[name=find]').setSelectionRange(1, 3)")
        await page.set_viewport_size({"width": 400, "height": 300})
        await page.evaluate("document.querySelector('.scroll').scrollLeft = 150; scrollTo(0, 90)")
        at = await page.evaluate("[document.querySelector('.scroll').scrollLeft, scrollY]")

        await shop.send("orders", [order(100, key="live", partition=0)])

        await page.wait_for_function(
            "([at, text]) => document.querySelector(at).innerText !== text", arg=[BACKLOG, before]
        )
        assert await page.evaluate("where") == "here"  # it was not loaded again
        assert (
            await page.evaluate("rows.filter(row => !row.isConnected && !row.id.startsWith('s-')).map(row => row.id)")
            == []
        )
        assert await page.input_value("input[name=find]") == "typed"
        focus = "document.activeElement"
        assert await page.evaluate(f"[{focus}.name, {focus}.selectionStart, {focus}.selectionEnd]") == ["find", 1, 3]
        assert await page.evaluate("[document.querySelector('.scroll').scrollLeft, scrollY]") == at


@on_its_loop
async def test_what_is_folded_open_and_what_is_marked_stays(shop: World):
    async with shop.page("browse?topic=orders&partition=0&from=0") as page:
        await page.click("#o-2 summary")
        await page.click("#o-0 summary")
        await page.evaluate("getSelection().selectAllChildren(document.querySelector('#o-2 pre'))")
        marked = await page.evaluate("getSelection().toString()")

        await looks(page)

        opened = "[...document.querySelectorAll('details')].map(one => one.open).slice(0, 4)"
        assert await page.evaluate(opened) == [False, False, True, False]
        assert marked
        assert await page.evaluate("getSelection().toString()") == marked


@on_its_loop
async def test_a_row_that_goes_takes_no_other_row_along(shop: World):
    """The next row keeps its node and the focus in it, so that no click meets another record than was meant."""
    async with shop.page("stuck") as page:
        rows = await page.locator("#main tbody tr").count()
        assert rows >= 1
        last = await page.evaluate(
            """() => { const rows = document.querySelectorAll('#main tbody tr');
                last = rows[rows.length - 1];
                const before = last.cloneNode(true);
                before.id = 'r-one-that-is-gone';
                last.before(before, document.createTextNode('\\n'));
                last.querySelector('button').focus();
                moved = 0;
                new MutationObserver(all => all.forEach(one => one.addedNodes.forEach(n => moved += n === last)))
                    .observe(last.parentNode, {childList: true});
                return last.id; }"""
        )

        await page.wait_for_function("() => !document.getElementById('r-one-that-is-gone')")

        assert await page.evaluate("[last.isConnected, last.id, moved]") == [True, last, 0]
        assert await page.evaluate("last.contains(document.activeElement)")


@on_its_loop
async def test_a_tab_that_is_hidden_asks_nothing_and_one_that_is_seen_again_asks_at_once(shop: World):
    async with shop.page("groups") as page:
        await looks(page, 1)
        await page.evaluate(
            """() => { hidden = true;
                Object.defineProperty(document, 'hidden', {get: () => hidden, configurable: true}); asked = [];
                const ask = fetch; fetch = (...all) => { asked.push(performance.now()); return ask(...all); };
                looked = 0; const later = setTimeout;
                setTimeout = (call, ms) => { looked += 1; return later(call, ms && ms / 10); } }"""
        )
        await page.wait_for_function("() => looked >= 4")
        assert await page.evaluate("asked.length") <= 1  # one was under way

        await page.evaluate("asked = []; hidden = false; document.dispatchEvent(new Event('visibilitychange'))")

        assert await page.evaluate("asked.length") == 1
        await looks(page, 1)


@on_its_loop
async def test_a_session_that_ends_while_a_page_is_open_leads_to_the_login(shop: World):
    async with shop.page("groups") as page:
        await page.context.clear_cookies()
        await page.wait_for_selector("input[name=password]")
        assert page.url.endswith("/login")


@on_its_loop
async def test_slash_leads_to_the_filter(shop: World):
    async with shop.page("groups") as page:
        await page.keyboard.press("/")
        await page.keyboard.type("arch")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/groups?find=arch*")
        assert await page.locator("tbody tr[id^=g-]").count() == 1


@on_its_loop
async def test_pages_and_forms_work_without_a_script(shop: World):
    async with shop.page("groups", java_script_enabled=False) as page:
        await page.fill("input[name=find]", "mail")
        await page.click(".filter button")
        await page.click("tbody a")
        assert await page.inner_text("h1") == "shop.mail"
        await page.click("text=limit")
        await page.fill("input[name=value]", "7")
        await page.click("main button")
        await page.click("main button.main")
        assert await page.inner_text(".notice.good") == "share.max.in.flight of shop.mail is 7 now"
        assert await page.inner_text("#c-share\\.max\\.in\\.flight td") == "7"
        await page.click("#c-share\\.max\\.in\\.flight button")
        await page.click("main button")
        await page.click("main button.main")
        assert await page.inner_text(".notice.good") == "share.max.in.flight of shop.mail is its default now"


@on_its_loop
async def test_a_worker_that_does_not_answer_leaves_what_was_seen_and_comes_back(shop: World):
    shown_of_it = "main :is(tbody tr, pre, section)"
    async with shop.page("groups", expect=["status of 503"]) as first:
        pages = {"groups": first}
        for name in PAGES.keys() - pages.keys():
            pages[name] = await first.context.new_page()
            await pages[name].goto(f"{shop.url}/{PAGES[name]}")
        for page in pages.values():
            await page.wait_for_selector(shown_of_it)
        shop.runs["worker"].tell(signal.SIGSTOP)
        try:
            for name, page in pages.items():
                await page.wait_for_selector("#age.bad")
                await page.wait_for_selector("main [role=alert]")
                assert await page.locator("main [role=alert]").count() == 1, name
                assert await page.locator(shown_of_it).count(), f"{name} does not show what was seen"
                async for _ in each_look_of(page, f"silent-{name}", LOOKS[::3]):
                    await assert_usable(page)
            async with shop.page("letters", expect=["status of 503"]) as late:  # not behind what the others ask
                await shown(late, "#problem", "the log has not answered within 3 s")
                assert await late.locator("[role=alert]").count() == 1
                await shot(late, "silent-first")
                shop.runs["worker"].tell(signal.SIGCONT)
                await late.wait_for_selector("text=shop.mail.dlq")  # by itself
        finally:
            shop.runs["worker"].tell(signal.SIGCONT)
        for page in pages.values():
            await page.wait_for_selector("main [role=alert]", state="detached")
            await shown(page, "#age:not(.bad)", "up to date")


@on_its_loop
async def test_a_worker_that_is_killed_is_told_and_so_is_the_next_one(shop: World):
    async with shop.page("groups") as page:
        shop.runs["worker"].end(signal.SIGKILL)
        try:
            await shown(page, "#main .notice", "No worker runs on this log")
            assert await page.locator(ARCHIVE).count() == 1
            await shot(page, "killed-groups")
            await page.goto(f"{shop.url}/fleet")
            await shown(page, "#main .empty", "No worker runs")
        finally:
            shop.start_worker()
        await shown(page, "#main tbody", "ready")
        await page.goto(f"{shop.url}/groups")
        await page.wait_for_function("() => !document.querySelector('#main').innerText.includes('No worker runs')")
        await until(shop.is_settled, "the shop is not at rest", look_s=0.1)


@on_its_loop
async def test_a_console_that_ends_is_told_without_a_storm_and_comes_back(shop: World):
    asked: list[str] = []
    async with shop.page("groups", expect=["ERR_CONNECTION_REFUSED"]) as page:
        await looks(page, 1)
        shop.runs["console"].end(signal.SIGKILL)
        await shown(page, "#trouble", "The console does not answer.")
        page.on("request", lambda one: asked.append(one.url))
        await shot(page, "console-gone")
        assert await page.locator(ARCHIVE).count() == 1
        async with page.expect_event("requestfailed"):
            pass
        waited = await page.evaluate("AWAY_MS")
        assert waited >= 5000
        assert len(asked) == 1

        shop.start_console()

        await page.wait_for_selector("input[name=password]")  # its sessions went with it
    shop.forget_logins()
