"""The pages over share groups that Kafka's brokers lead: what these do not tell is said in its place, and nothing that
is not known is claimed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from flowshare.client.errors import ServerError
from flowshare.dev.broker import DevBroker
from tests.browser.access import assert_usable
from tests.browser.pages import LOOKS, Browser, on_its_loop
from tests.console.browser.test_live import shown
from tests.console.browser.world import World, each_look_of, message
from tests.waiting import until

pytestmark = [pytest.mark.timeout(240), pytest.mark.java]
MARK = uuid.uuid4().hex[:8]
GROUP, TOPIC = f"post-{MARK}.carry", f"parcels-{MARK}"
"""Topics and groups of all tests meet on one broker."""
HANGS = 3
PAGES = {
    "groups": "groups",
    "group": f"group?name={GROUP}",
    "partition": f"partition?group={GROUP}&topic={TOPIC}&partition=0",
    "in-flight": "in-flight?stacks=1",
    "stuck": "stuck",
    "delayed": "delayed",
    "letters": f"letters?topic={GROUP}.dlq",
    "browse": f"browse?topic={TOPIC}&partition=0&from=0&group={GROUP}",
    "keys": "keys",
    "handlers": "handlers",
    "fleet": "fleet",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def post(kafka: DevBroker, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One group on a real broker: a handler that hangs, a parcel that waits for an hour, a dead letter."""
    url = f"kafka://{','.join(kafka.addresses)}?share=native"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POST_TOPIC", TOPIC)
        patch.setenv("POST_GROUP", GROUP)
        world = World(tmp_path_factory.mktemp("post"), browser, url)
        try:
            await world.ask(lambda admin: admin.create_topic(TOPIC, partitions=1))
            odd = {1: {"broken": True}, 2: {"late": True}, HANGS: {"hangs": True}}
            await world.send(TOPIC, [message({"n": n, **odd.get(n, {})}, f"p{n}") for n in range(10)])
            pages = world.start_worker("post").printed(r"health and metrics at http://(\S+) ")

            async def is_at_rest() -> bool:
                try:
                    page = await world.ask(lambda admin: admin.browse(GROUP, TOPIC, 0))
                    letters = await world.ask(lambda admin: admin.log_end(f"{GROUP}.dlq", 0))
                except ServerError:  # it has not begun yet
                    return False
                done = sum(run.last - run.first + 1 for run in page.runs) + max(0, page.start_offset)
                return letters == 1 and done >= 9

            await until(is_at_rest, "the parcels are not carried", look_s=0.2)
            world.start_console("--web", pages, "--data", str(world.folder / "data"))
            async with world.page("groups") as page:
                await shown(page, "tbody", GROUP)
            yield world
        finally:
            world.end()


async def said(world: World, name: str, *, last: str = "") -> str:
    """The text of a page, as soon as this stands on it."""
    async with world.page(PAGES[name]) as page:
        await shown(page, "main", last or "\n")
        return " ".join((await page.inner_text("main")).split())


@on_its_loop
@pytest.mark.parametrize("name", PAGES)
async def test_each_page_is_usable_at_each_look(post: World, name):
    async with post.page(PAGES[name]) as page:
        await page.wait_for_selector("main :is(tbody tr, pre, section, .note, .empty)")
        async for _ in each_look_of(page, f"native-{name}", LOOKS):
            await assert_usable(page)


@on_its_loop
async def test_the_table_of_groups_says_whose_figures_are_missing_and_why(post: World):
    text = await said(post, "groups")
    assert (
        "Kafka's brokers lead these groups, and do not tell what is in flight, delayed, blocked or redelivered" in text
    )
    assert "Kafka's brokers lead it, and do not tell" in await said(post, "group")


@on_its_loop
async def test_nobody_is_said_to_hold_nothing_where_nobody_can_know(post: World):
    text = await said(post, "in-flight")
    assert text.count("Kafka's brokers do not tell who holds what") == 1
    assert f"{TOPIC}-0@{HANGS}" in text  # the worker tells what it has in hand
    assert "await asyncio.Event().wait()" in text
    assert "Nobody holds a record" not in text


@on_its_loop
async def test_a_handler_that_runs_for_long_is_named_with_its_group_and_without_buttons(post: World):
    async with post.page("stuck") as page:
        row = page.locator("[aria-label=handlers] tbody tr")
        await row.wait_for()
        assert GROUP in await row.inner_text()
        assert await row.locator("button").count() == 0
        text = await page.inner_text("main")
        assert "end the process of the worker" in text
        assert "Nothing is stuck" not in text


@on_its_loop
async def test_what_waits_for_its_next_attempt_is_where_its_topic_is(post: World):
    async with post.page("delayed") as page:
        await shown(page, "main", f"{GROUP}: 1 record waits")  # a look may be older than the group's part in the topic
        text = await page.inner_text("main")
        assert "No record waits" not in text
        assert "Kafka's brokers know no delays" in text
        await page.click(f"a:text('{GROUP}.retry')")
        assert '"late": true' in await page.text_content("tbody")


@on_its_loop
async def test_what_is_held_is_not_said_to_be_available_or_not_reached(post: World):
    async with post.page(PAGES["browse"]) as page:
        assert await page.inner_text(f"#o-{HANGS} td:last-child") == "not told"
        assert "acknowledged" in await page.inner_text("#o-9 td:last-child")
        await page.goto(f"{post.url}/{PAGES['partition']}")
        text = " ".join((await page.inner_text("main")).split())
        assert "led by Kafka's brokers" in text
        assert "as stored" not in text
        cell = page.locator(".strip rect.s-unknown title")
        assert f"{HANGS}: unknown" in await cell.all_text_contents()
        assert "unknown 1" in text


@on_its_loop
async def test_settings_are_explained_in_words_and_not_in_html(post: World):
    text = await said(post, "group")
    assert "share.auto.offset.reset" in text
    assert "<li>" not in text
    assert "&lt;" not in text


@on_its_loop
async def test_no_order_is_offered_that_brokers_do_not_have(post: World):
    text = await said(post, "keys")
    assert "Kafka's brokers know no order of keys" in text
    assert "asks for one" not in text


@on_its_loop
async def test_what_brokers_cannot_do_is_refused_in_a_sentence_that_says_what_to_do(post: World):
    release = f"do/release?group={GROUP}&topic={TOPIC}&partition=0&ranges={HANGS}-{HANGS}"
    async with post.page(release, expect=["status of 422"]) as page:
        text = await page.inner_text("[role=alert]")
        assert text.startswith(f"Kafka's brokers lead group {GROUP}")
        assert "end the process of the member that hangs" in text
