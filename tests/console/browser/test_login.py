"""Logging in and out, in a browser: its own rules for forms and cookies are a part of that."""

from __future__ import annotations

import pytest

from tests.browser.access import assert_usable
from tests.browser.pages import on_its_loop, shot
from tests.console.browser.world import World, each_look_of, log_in

pytestmark = pytest.mark.timeout(120)


@on_its_loop
async def test_the_login_page_tells_nothing_of_the_log_but_when_a_login_is_wrong(shop: World):
    async with shop.page("login", who=None, expect=["status of 403"]) as page:
        async for _ in each_look_of(page, "login"):
            await assert_usable(page)
        assert str(shop.folder) not in await page.content()
        assert await page.locator("nav").count() == 0
        await log_in(page, "olga", "let me guess")
        assert await page.inner_text("main [role=alert]") == "the name or the password is wrong"
        await shot(page, "login-wrong")


@on_its_loop
async def test_whoever_logs_out_is_out(shop: World):
    async with shop.page("login", who=None) as page:
        await log_in(page, "olga")
        await page.wait_for_url("**/groups")
        await page.click("text=log out")
        assert page.url.endswith("/login")
        await page.goto(f"{shop.url}/groups")
        assert page.url.endswith("/login")
