"""Stories of an operator in the console, from finding a problem to fixing it; and the limits of a viewer."""

from __future__ import annotations

import pytest
from playwright.async_api import Page

from tests.browser.pages import on_its_loop, shot
from tests.console.browser.test_live import shown
from tests.console.browser.world import PAGES, World
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)


async def act(page: Page, button: str) -> str:
    """Press a button of a page and agree to what would happen; what the next page says."""
    await page.click(button)
    await shown(page, "main", "The same on the command line:")
    await page.click("main button:is(.main, .danger)")
    return await page.inner_text(".notice[role=status]")


@on_its_loop
async def test_a_stuck_key_is_found_released_and_audited(shop: World):
    first = await shop.stick("two", 1, 5)
    place, row = f"orders-1@{first}", f"#k-orders\\/1\\/{first}\\/shop\\.bill"

    async with shop.page("groups") as page:
        await shown(page, "#s-shop\\.bill", f"5 of them behind {place}, which")
        assert await page.locator("#g-shop\\.bill.stalled").count() == 1
        await page.click("#g-shop\\.bill a")
        assert "unfinished records wait behind a record of their key" in await page.inner_text(".notice.warn")
        await page.click("text=stuck >> nth=-1")
        await shown(page, row, place)
        assert "acquired" in await page.inner_text(row)
        await page.click(f"{row} button:text('release')")
        deed_said = f"shop.bill --topic orders --partition 1 --offset {first}"
        command = f"flowshare groups release --broker {shop.broker} {deed_said}"
        assert await page.inner_text("main code") == command
        assert "they are delivered again" in await page.inner_text("main")
        await shot(page, "story-release")
        await page.click("text=Release >> nth=-1")
        assert await page.inner_text(".notice.good") == "release: 1 record"
        await page.wait_for_selector(row, state="detached")

        await page.click("nav >> text=Audit")
        deed = page.locator("tbody tr").first
        assert await deed.locator("td").nth(1).inner_text() == "olga"
        assert await deed.locator("code").inner_text() == f"flowshare groups release {deed_said}"
        assert "release: 1 record" in await deed.inner_text()
        await shot(page, "story-audit")
    await until(shop.is_settled, "the shop is not at rest", look_s=0.1)


@on_its_loop
async def test_a_dead_letter_is_looked_at_and_replayed_after_a_dry_run(shop: World):
    async with shop.page("letters") as page:
        await page.click("tbody a:text('shop.mail.dlq')")
        letters = await page.locator("[aria-label=letters] tbody tr").count()
        await page.click("a:text-is('0@1')")
        assert "<b>mail</b>" in await page.inner_text("pre >> nth=0")
        await page.click("text=replay this one")
        assert await page.inner_text("main code") == (
            f"flowshare dlq replay --broker {shop.broker} shop.mail.dlq --at 0@1"
        )
        dry = await page.inner_text("main p >> nth=0")
        assert "would be sent to mails" in dry
        assert await page.locator("[aria-label=letters]").count() == 0

        await page.click("main button.main")

        assert "replayed 1 to mails" in await page.inner_text(".notice.good")
        await page.wait_for_function(
            "count => document.querySelectorAll('[aria-label=letters] tbody tr').length === count", arg=letters + 1
        )  # it failed again
        await page.click("a:text-is('0@1')")
        await page.click("text=replay this one")
        assert "were replayed before" in await page.inner_text("main") or "was replayed" in await page.inner_text(
            "main"
        )


@on_its_loop
async def test_a_group_is_paused_and_resumed(shop: World):
    async with shop.page("group?name=shop.ledger") as page:
        assert await act(page, "text=pause") == "group shop.ledger is paused"
        await shown(page, ".head .state", "Paused")
        await page.goto(f"{shop.url}/groups")
        await shown(page, "#s-shop\\.ledger code", "flowshare groups resume shop.ledger")
        await page.click("#g-shop\\.ledger a")
        assert await act(page, "text=resume") == "group shop.ledger goes on"
        await shown(page, ".head .state", "Stable")


@on_its_loop
async def test_a_wrong_value_of_a_setting_is_one_sentence_and_what_was_typed_stays(shop: World):
    async with shop.page("group?name=shop.mail", expect=["status of 422"]) as page:
        await page.click("#c-share\\.delivery\\.count\\.limit button")
        await page.fill("input[name=value]", "many")
        await page.keyboard.press("Enter")

        alert = await page.inner_text("[role=alert]")
        assert "share.delivery.count.limit is 'many'; allowed:" in alert
        assert "\n" not in alert
        assert await page.input_value("input[name=value]") == "many"

        await page.fill("input[name=value]", "8")
        await page.keyboard.press("Enter")
        await shown(page, "main", "and becomes '8'")
        assert await page.evaluate("document.activeElement.innerText") == "Change a setting"


@on_its_loop
async def test_a_viewer_sees_everything_and_has_no_buttons(shop: World):
    async with shop.page("groups", who="victor", expect=["status of 403"]) as page:
        for path in PAGES.values():
            await page.goto(f"{shop.url}/{path}")
            assert await page.inner_text(".who .name") == "victor, viewer"
            assert await page.locator("main form[action^='/do/']").count() == 0, path
        answer = await page.goto(f"{shop.url}/do/pause?group=shop.bill")
        assert answer is not None
        assert answer.status == 403
        assert await page.inner_text("body") == "a viewer sees everything and changes nothing; ask an operator"
