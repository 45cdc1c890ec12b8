"""Each deed has two faces, a command and a button; both read the same texts, and call the same act with the same
arguments."""

from __future__ import annotations

import asyncio
import importlib
import shlex
from types import SimpleNamespace

import click
import pytest

from flowshare.cli import COMMANDS, main
from flowshare.client.admin.browser import Browser
from flowshare.client.errors import ServerError
from flowshare.console.actions import ACTIONS
from flowshare.console.forms import Means
from flowshare.ops import Failure
from flowshare.ops.deeds import DEEDS
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.key_hash import NAME_MAX, key_name
from tests.console.test_actions import GIVEN, RANGES, REPLAY, RESET

GROUP = {"group": "g"}
WRONG = [
    ("release", {**RANGES, "ranges": "x"}, "'x' is no offset or range such as 17 or 17-20"),
    ("now", {**RANGES, "ranges": "9-5"}, "'9-5' ends before it begins"),
    ("reject", {**RANGES, "ranges": ","}, "Missing option '--offset'"),
    ("dead_letter", {**RANGES, "partition": "-1"}, "Invalid value for '--partition'"),
    ("release", {**RANGES, "partition": str(2**31)}, "is not in the range 0<=x<=2147483647"),
    ("set", {**GROUP, "setting": "=", "value": "7"}, "'==7' is not NAME=VALUE"),
    ("reset", {**RESET, "to": "offset", "at": "x"}, "Invalid value for '--to-offset'"),
    ("reset", {**RESET, "to": "time", "at": "now"}, "--to-datetime 'now' is no date and time such as"),
    ("reset", {**RESET, "to": "time"}, "say where to: one of --to-earliest"),
    ("unpark", {**GROUP, "topic": "orders", "partition": "0", "key": "xy"}, "'xy' is not hexadecimal"),
    ("replay", {**REPLAY, "at": "17"}, "'17' is no place of shop.orders.dlq"),
    ("replay", {**REPLAY, "at": "0@" + "9" * 30}, "there is no letter at 0@9"),
    ("replay", {**REPLAY, "limit": "0"}, "Invalid value for '--limit'"),
    ("replay", {**REPLAY, "rate": "nan"}, "'nan' is no number a second"),
    ("end_delays", {**GROUP, "rate": "0"}, "Invalid value for '--rate'"),
    ("end_delays", {**GROUP, "rate": "1e-300"}, "is not in the range x>=0.001"),
    ("replay", {**REPLAY, "rate": "1e-300"}, "is not in the range x>=0.001"),
    ("end_delays", {**GROUP, "rate": "inf"}, "'inf' is no number a second"),
    ("resize", {"worker": "127.0.0.1:1", "count": "0"}, "Invalid value for 'WORKERS'"),
]


class Done(Exception):
    """The act was called; nothing more is looked at."""


@pytest.fixture
def acts(monkeypatch):
    """Calls of acts, in order: the command of the deed, and the arguments."""
    called = []

    def act_of(deed):
        async def act(_, **given):
            called.append((deed.command, given))
            raise Done

        return act

    before = {deed.command: deed.act for deed in DEEDS.values()}
    for deed in DEEDS.values():
        object.__setattr__(deed, "act", act_of(deed))
    yield called
    for command, act in before.items():
        object.__setattr__(DEEDS[command], "act", act)


def run(words, monkeypatch):
    """Run a command on a log that nobody looks at."""

    def on_none(_, function, **__):
        asyncio.run(function(SimpleNamespace(send_as=lambda _: None)))

    monkeypatch.setattr("flowshare.cli.acting.run", on_none)
    monkeypatch.setenv("FLOWSHARE_BROKER", "memory://")
    with pytest.raises(SystemExit) as stop:
        main(words)
    return stop.value.code


def command_of(deed):
    """Return the command that the command line has for a deed."""
    first, *rest = deed.command.split()
    module, attribute, _ = COMMANDS[first]
    command = getattr(importlib.import_module(module), attribute)
    for name in rest:
        command = command.commands[name]
    return command


@pytest.mark.parametrize("name", DEEDS)
def test_each_deed_is_a_command_with_its_arguments_and_a_button(name):
    deed = DEEDS[name]
    command = command_of(deed)

    assert command.name == deed.name
    assert command.help == deed.help
    assert all(any(one is mine for mine in command.params) for one in deed.arguments)
    options = {option for one in command.params for option in one.opts}
    assert {deed.trial} - {""} <= options
    buttons = [action for action in ACTIONS.values() if action.deed is deed]
    assert buttons
    names = {one.name for one in deed.arguments}
    for action in buttons:
        params = next(params for button, params, _ in GIVEN if button == action.name)
        assert action.given(params).keys() <= names
        assert action.danger is deed.danger


def test_each_button_is_a_deed_of_the_table():
    assert {action.deed.command for action in ACTIONS.values()} == set(DEEDS)
    assert all(DEEDS[action.deed.command] is action.deed for action in ACTIONS.values())


@pytest.mark.parametrize(("name", "params", "_"), GIVEN)
def test_both_faces_call_the_same_act_with_the_same_arguments(acts, monkeypatch, name, params, _):
    action = ACTIONS[name]
    read = action.read(params)
    limits, most_s = [], action.limit_s if action.long else 60.0

    class Source:
        async def ask(self, question, *, limit_s):
            limits.append(limit_s)
            return await question(None)

    assert run(shlex.split(action.said(read))[1:], monkeypatch) == 1
    means = Means(Source(), SimpleNamespace(order=None))
    for face in (action.act, action.preview):
        with pytest.raises(Done):
            asyncio.run(face(means, action.arguments(read)))

    assert limits == ([] if action.deed.on_workers else [action.limit_s, min(action.limit_s, most_s)])
    by_command, by_button, tried = acts
    assert by_command == by_button
    assert by_button[0] == action.deed.command
    assert tried == (action.deed.command, {**by_button[1], "dry_run": True})


@pytest.mark.parametrize("name", [name for name, deed in DEEDS.items() if not deed.on_workers])
def test_the_app_is_imported_only_by_a_deed_that_sends_records(acts, monkeypatch, name):
    button, params, _ = next(one for one in GIVEN if ACTIONS[one[0]].deed.command == name)
    words = shlex.split(ACTIONS[button].said(ACTIONS[button].read(params), "memory://"))[1:]
    loaded = []
    session = SimpleNamespace(send_as=loaded.append)
    monkeypatch.setattr("flowshare.cli.acting.run", lambda _, function, **__: asyncio.run(function(session)))
    with pytest.raises(SystemExit):
        main([*words[:2], "--app", "shop:app", *words[2:]])

    assert len(acts) == 1
    assert loaded == (["shop:app"] if name == "dlq replay" else [])


@pytest.mark.parametrize(("name", "params", "sentence"), WRONG)
def test_both_faces_refuse_a_wrong_argument_with_the_same_sentence(acts, monkeypatch, capsys, name, params, sentence):
    action = ACTIONS[name]
    read = action.read(params)
    with pytest.raises(click.ClickException) as refused:
        action.arguments(read)

    assert run(shlex.split(action.said(read))[1:], monkeypatch) == 2
    assert sentence in refused.value.format_message()
    assert f"Error: {refused.value.format_message()}\n" in capsys.readouterr().err
    assert acts == []


class ParkedAdmin:
    """Stands in for the admin client of a group with parked keys: what it was asked to unpark."""

    def __init__(self, *keys, listed=None):
        self.keys = list(keys)
        self.listed = self.keys if listed is None else listed
        self.unparked = []

    async def change_parked_key(self, _group, _act, topic, partition, key):
        if (topic, partition, key) not in self.keys:
            return None
        self.unparked.append((topic, partition, key))
        return object()

    async def parked_keys(self, _group):
        if self.listed is AWAY:
            raise ServerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader of orders-1 is away")
        return SimpleNamespace(keys=[SimpleNamespace(topic=t, partition=p, key=key) for t, p, key in self.listed])


AWAY = object()
LONG = b"k" * (NAME_MAX + 1)


async def unparked(admin, key=b"k", topic="orders", partition=0):
    given = {"group": "g", "key": key, "topic": topic, "partition": partition}
    places = await DEEDS["dlq unpark"].act(SimpleNamespace(admin=admin), dry_run=False, **given)
    return DEEDS["dlq unpark"].said(places, **given)


@pytest.mark.asyncio
@pytest.mark.parametrize(("key", "name"), [(b"k", b"k"), (LONG, key_name(LONG)), (key_name(LONG), key_name(LONG))])
async def test_a_key_of_a_named_partition_is_unparked_while_the_leader_of_another_one_is_away(key, name):
    admin = ParkedAdmin(("orders", 0, name), listed=AWAY)

    assert await unparked(admin, key) == "the key goes on"
    assert admin.unparked == [("orders", 0, name)]


@pytest.mark.asyncio
@pytest.mark.parametrize("place", [("orders", 0), (None, None)])
async def test_a_key_that_has_gone_on_meanwhile_is_not_told_as_let_go_on(place):
    for listed in ([], [("orders", 0, b"k")]):
        assert await unparked(ParkedAdmin(listed=listed), b"k", *place) == "the key is not parked any more"


@pytest.mark.asyncio
async def test_a_key_that_is_parked_elsewhere_is_told_with_its_place():
    with pytest.raises(Failure, match="parked in orders-1, and not in orders-0"):
        await unparked(ParkedAdmin(("orders", 1, b"k")))


@pytest.mark.asyncio
@pytest.mark.parametrize(("dry_run", "calls"), [(True, 3), (False, 250)])
async def test_the_rate_of_ended_delays_does_not_make_a_dry_run_ask_more_often(monkeypatch, dry_run, calls):
    asked = []

    class Clock:
        async def sleep(self, _s):
            pass

    async def delayed(*_):
        return [(0, 2_499)]

    async def places(*_):
        return [("orders", 0)]

    async def intervene(*more, dry_run):
        asked.append(dry_run)
        return [SimpleNamespace(done=last - first + 1) for first, last in more[4]]

    monkeypatch.setattr(Browser, "_delayed", delayed)
    monkeypatch.setattr(Browser, "places", places)
    monkeypatch.setattr(Browser, "intervene", intervene)

    assert await Browser(None, ask=None, send=None, clock=Clock()).end_delays("g", 100.0, dry_run=dry_run) == 2_500
    assert asked == [dry_run] * calls


@pytest.mark.parametrize(("rate", "told"), [(0.5, "0.5"), (100.0, "100"), (1_234_567.0, "1234567")])
def test_a_rate_is_told_as_it_was_given(rate, told):
    (line,) = DEEDS["groups end-delays"].about(10, group="g", rate=rate).lines

    assert line == f"10 records come, {told} a second; it takes about {10 / rate:.0f} s."
