"""The world that tests of the console share: one for all tests of a process, as is the browser."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.browser.pages import Browser
from tests.console.browser.world import World, running


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def shop(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A shop with a worker and a console. What a test changes it puts back."""
    async with running(tmp_path_factory.mktemp("shop"), browser) as world:
        async with world.page("groups") as page:
            await page.wait_for_selector("tbody tr")  # the console has looked at them
        async with world.page("do/limit?group=shop.archive&setting=share.max.in.flight&value=9") as page:
            await page.click("main button.main")  # so that there is a deed
        yield world


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def nothing(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """A console of a path on which there is nothing, and nobody."""
    async with running(tmp_path_factory.mktemp("nothing"), browser, full=False) as world:
        yield world
