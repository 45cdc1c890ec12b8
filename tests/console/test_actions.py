"""Each button is a command: what it shows is what the command line takes, and a preview changes nothing."""

from __future__ import annotations

import shlex

import click
import pytest

from flowshare.cli import COMMANDS
from flowshare.client.admin.admin import TAKEN_UP_S
from flowshare.console.actions import ACTIONS
from flowshare.console.forms import TEXT_MAX, BadForm, to_type
from flowshare.ops.arguments import PARTITION_MAX
from tests.console.test_server import LETTER, letter
from tests.console.world import browser, console

GROUP = {"group": "shop.orders"}
PLACE = {**GROUP, "topic": "orders", "partition": "3"}
RANGES = {**PLACE, "ranges": "5-9, 12 13"}
RESET = {**GROUP, "to": "earliest", "at": "", "topic": ""}
REPLAY = {"topic": "shop.orders.dlq", "at": "", "reason": "", "exception": "", "limit": "", "rate": ""}
GIVEN = [
    ("pause", GROUP, {"group": "shop.orders"}),
    ("resume", GROUP, {"group": "shop.orders"}),
    ("set", {**GROUP, "setting": "share.max.in.flight", "value": "7"}, {"settings": ("share.max.in.flight=7",)}),
    ("set", {**GROUP, "setting": "share.max.in.flight", "value": ""}, {"settings": ("share.max.in.flight=",)}),
    ("limit", {**GROUP, "setting": "share.max.in.flight", "value": "7"}, {"settings": ("share.max.in.flight=7",)}),
    ("rate", {**GROUP, "setting": "share.max.rate", "value": "10/m"}, {"settings": ("share.max.rate=10/m",)}),
    ("priority", {**GROUP, "setting": "share.delivery.priority", "value": "new"},
     {"settings": ("share.delivery.priority=new",)}),
    ("reset", RESET, {"to_earliest": True, "execute": True, "topics": ()}),
    ("reset", {**RESET, "to": "latest", "topic": "orders"}, {"to_latest": True, "topics": ("orders",)}),
    ("reset", {**RESET, "to": "offset", "at": "17"}, {"to_offset": 17, "execute": True}),
    ("reset", {**RESET, "to": "time", "at": "2026-11-21T09:00:00"}, {"to_datetime": "2026-11-21T09:00:00"}),
    ("unpark", {**PLACE, "key": "6b31"}, {"group": "shop.orders", "key_hex": "6b31", "topic": "orders"}),
    ("replay", REPLAY, {"topic": "shop.orders.dlq", "places": (), "dry_run": False}),
    ("replay", {**REPLAY, "at": "0@17, 1@3", "rate": "10"}, {"places": ("0@17", "1@3"), "rate": 10.0}),
    ("replay", {**REPLAY, "reason": "a b", "exception": "-x", "limit": "5"},
     {"reason": "a b", "exception": "-x", "limit": 5}),
    ("drain", {"worker": "127.0.0.1:8080"}, {"worker": "127.0.0.1:8080"}),
    ("resize", {"worker": "127.0.0.1:8080", "count": "3"}, {"worker": "127.0.0.1:8080", "count": 3}),
    ("end_delays", {**GROUP, "rate": "5"}, {"group": "shop.orders", "rate": 5.0}),
    *((name, RANGES, {"group": "shop.orders", "topic": "orders", "partition": 3})
      for name in ("release", "reject", "dead_letter", "now")),
]  # fmt: skip


def parsed(words: list[str]) -> dict[str, object]:
    """Return click's parameters for the words of a command line. Raises: click's errors."""
    from flowshare.cli import cli

    command: click.Command = cli
    context = click.Context(command, info_name="flowshare")
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = found, click.Context(found, info_name=name, parent=context)
    return command.make_context(command.name, words).params


def test_all_actions_are_looked_at_here():
    assert {name for name, _, _ in GIVEN} >= ACTIONS.keys()
    assert set(COMMANDS) >= {action.deed.command.split()[0] for action in ACTIONS.values()}


@pytest.mark.parametrize(("name", "params", "taken"), GIVEN)
def test_the_command_that_is_shown_is_one_that_the_command_line_takes(name, params, taken):
    action = ACTIONS.get(name)
    if action is None:
        pytest.skip(f"there is no action {name}")
    words = shlex.split(action.said(action.read(params)))

    assert words[0] == "flowshare"
    found = parsed(words[1:])

    assert {key: found[key] for key in taken} == taken


@pytest.mark.parametrize("name", ["--help", "orders"])
@pytest.mark.parametrize(("action", "params", "_"), GIVEN)
def test_the_command_says_which_log_it_works_on(action, params, _, name):
    given = {key: name if key in ("group", "topic") else value for key, value in params.items()}
    words = shlex.split(ACTIONS[action].said(ACTIONS[action].read(given), "kafka://a:9092?share=workers"))
    worker = words[1] in ("drain", "resize")

    assert parsed(words[1:]).get("broker") == (None if worker else "kafka://a:9092?share=workers")


@pytest.mark.parametrize(
    ("url", "typed"),
    [
        ("embedded:///data/a b?open=true", "embedded:///data/a b?open=true"),
        ("kafka://a:9092,b:9092?share=native", "kafka://a:9092,b:9092?share=native"),
        ("kafka://olga:s3cret@a:9092?ca_file=/ca.pem", "kafka://olga@a:9092?ca_file=/ca.pem"),
        ("kafka://olga@a:9092?password_file=/run/pw", "kafka://olga@a:9092?password_file=/run/pw"),
    ],
)
def test_the_url_that_is_shown_is_the_same_log_without_a_password(url, typed):
    assert to_type(url) == typed
    assert to_type(typed) == typed


@pytest.mark.parametrize("name", ["pause", "resume", "set", "limit", "rate", "priority"])
def test_a_change_of_a_setting_may_take_as_long_as_brokers_take_to_report_it(name):
    """Else it would be told as failed, and be made."""
    assert ACTIONS[name].limit_s > 2 * TAKEN_UP_S


def test_offsets_of_an_intervention_are_those_of_the_command():
    words = shlex.split(ACTIONS["release"].said(ACTIONS["release"].read(RANGES)))

    assert parsed(words[1:])["ranges"] == ((5, 9), (12, 12), (13, 13))


@pytest.mark.parametrize("group", ["a b", "it's", "$(reboot)", "`id`", "a;b", "a\nb", "é", '"'])
def test_a_name_is_one_word_of_the_command(group):
    words = shlex.split(ACTIONS["pause"].said({"group": group}))

    assert words == ["flowshare", "groups", "pause", group]


@pytest.mark.parametrize("group", ["--help", "-x", "--broker=kafka://evil"])
def test_a_name_that_begins_with_a_dash_is_no_option_of_the_command(group):
    for name, params, _ in GIVEN:
        if name in ACTIONS and "group" in params:
            words = shlex.split(ACTIONS[name].said({**params, "group": group}))
            assert parsed(words[1:])["group"] == group


@pytest.mark.parametrize(
    ("name", "form", "text"),
    [
        ("pause", {}, "the group is missing"),
        ("pause", {"group": ""}, "the group is missing"),
        ("pause", {"group": "g" * (TEXT_MAX + 1)}, f"longer than {TEXT_MAX} characters"),
        ("limit", {**GROUP, "setting": "other", "value": "1"}, "is one of share.max.in.flight"),
        ("reset", {**RESET, "to": "never"}, "is one of earliest, latest, offset, time"),
    ],
)
def test_a_form_that_is_not_filled_in_is_refused(name, form, text):
    with pytest.raises(BadForm, match=text):
        ACTIONS[name].read(form)


@pytest.mark.parametrize("text", ["x", "5-", "-5", "9-5", "5-9-12", "٣", "²", "9" * 20, "1-" + "9" * 400, ",", "5;6"])
def test_offsets_that_are_none_are_refused(text):
    with pytest.raises(click.ClickException):
        ACTIONS["release"].arguments({**RANGES, "ranges": text})


@pytest.mark.parametrize("text", ["17", "0@", "@5", "0@x", f"{PARTITION_MAX + 1}@0", "0@" + "9" * 30, "²@1", "0@1@2"])
def test_places_that_are_none_are_refused(text):
    with pytest.raises(click.ClickException):
        ACTIONS["replay"].arguments({**REPLAY, "at": text})


def test_ranges_that_overlap_are_put_together():
    arguments = ACTIONS["now"].arguments({**RANGES, "ranges": "7-9 5-8 12,13 5"})

    assert arguments["ranges"] == [(5, 9), (12, 13)]


PREVIEWS = [
    ("pause", {"group": "g"}), ("resume", {"group": "g"}),
    ("set", {"group": "g", "setting": "share.max.in.flight", "value": "7"}),
    ("limit", {"group": "g", "setting": "share.max.in.flight", "value": "7"}),
    ("rate", {"group": "g", "setting": "share.max.rate", "value": "10/m"}),
    ("priority", {"group": "g", "setting": "share.delivery.priority", "value": "new"}),
    ("unpark", {"group": "g", "topic": "orders", "partition": "0", "key": "00"}),
    ("replay", {**REPLAY, "topic": "g.dlq"}),
    *((name, {"group": "g", "topic": "orders", "partition": "0", "ranges": "0-9"})
      for name in ("release", "reject", "now", "dead_letter")),
    ("end_delays", {"group": "g", "rate": "5"}),
]  # fmt: skip


@pytest.mark.asyncio
async def test_no_preview_changes_anything(tmp_path):
    async with console(tmp_path / "c") as made, browser(made) as who:
        await made.topic()
        await made.topic("g.dlq", values=0)
        await made.send("g.dlq", letter(**LETTER))
        await made.held(**{"errors.deadletterqueue.topic.name": "g.dlq"})

        async def state():
            page = await made.ask(lambda admin: admin.browse("g", "orders", 0))
            configs = await made.ask(lambda admin: admin.group_configs("g"))
            ends = await made.ask(lambda admin: admin.offsets("g.dlq", 0))
            return page.runs, page.start_offset, configs, ends

        before = await state()
        for name, params in PREVIEWS:
            if name not in ACTIONS:
                continue
            status, text = await who.get(f"/do/{name}", params=params)
            assert status == 200, (name, text[-900:])
            assert 'class="sure"' in text, name
        assert await state() == before
        assert await made.store.deeds() == []
