"""Every page at both widths, light and dark; where nothing is, or what it is about is gone, one of each."""

from __future__ import annotations

import pytest

from tests.browser.access import assert_usable
from tests.browser.pages import LOOKS, on_its_loop
from tests.console.browser.world import FORMS, PAGES, World, each_look_of

pytestmark = pytest.mark.timeout(120)
EMPTY = {name: PAGES[name] for name in ("groups", "in-flight", "stuck", "delayed", "letter-topics", "keys", "handlers")}
EMPTY |= {"fleet": "fleet", "audit": "audit", "browse": "browse"}
GONE = {
    "group": ("group?name=shop.gone", "there is no group 'shop.gone'", 404),
    "partition": ("partition?group=shop.gone&topic=orders&partition=0", "shop.gone", 404),
    "partition-number": ("partition?group=shop.bill&topic=orders&partition=x", "a whole number from 0 on", 400),
    "letters": ("letters?topic=gone.dlq", "gone.dlq", 404),
    "letter": ("letters?topic=shop.mail.dlq&at=0@999", "no letter at shop.mail.dlq-0@999", 404),
    "browse": ("browse?topic=gone&partition=0", "gone", 404),
    "browse-time": ("browse?topic=orders&partition=0&time=yesterday", "is no time such as", 400),
    "confirm": ("do/resume?group=shop.gone", "shop.gone", 404),
    "form": ("do/reset?group=shop.gone&to=earliest&at=&topic=", "shop.gone", 404),
}


@on_its_loop
@pytest.mark.parametrize("name", [*PAGES, *FORMS])
async def test_a_page_with_data_is_usable_at_each_look(shop: World, name):
    expect = ["status of 4"] if name == "wrong value" else []

    async with shop.page({**PAGES, **FORMS}[name], expect=expect) as page:
        await page.wait_for_selector("main :is(tbody tr, form[method=post], .fill, pre, section)")
        async for _ in each_look_of(page, name):
            await assert_usable(page)


@on_its_loop
@pytest.mark.parametrize("name", EMPTY)
async def test_a_page_with_nothing_to_show_says_so(nothing: World, name):
    async with nothing.page(EMPTY[name]) as page:
        await page.wait_for_selector("main .empty")
        async for _ in each_look_of(page, f"empty-{name}", LOOKS[::3]):
            await assert_usable(page)


@on_its_loop
@pytest.mark.parametrize("name", GONE)
async def test_what_is_not_there_is_one_sentence(shop: World, name):
    path, text, status = GONE[name]

    async with shop.page(path, expect=[f"status of {status}"] if status >= 400 else []) as page:
        assert text in await page.text_content("main [role=alert], main p")
        async for _ in each_look_of(page, f"gone-{name}", LOOKS[::3]):
            await assert_usable(page)
