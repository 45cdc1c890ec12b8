"""The fixture `browser`: one real browser for each process of the run, started by the first test that asks for it.

Where it cannot be had (no npm, no network, another system than Linux on x86-64), the tests are skipped; in CI (the
variable CI is "true") they fail. A test with it is `real`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest_asyncio

from flowshare.dev import DevFailure
from tests.browser.pages import Browser, browsing
from tests.kafka.fixtures import refuse


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncGenerator[Browser]:
    """A browser; `async with browser.page(url, look) as page` looks at a page. For tests with `pages.on_its_loop`."""
    try:
        async with browsing() as found:
            yield found
    except DevFailure as error:
        refuse(str(error))
