"""Commands about the groups of a fleet of which no worker runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from flowshare.backend import open_backend
from flowshare.backend.url import parse_broker
from flowshare.cli import main
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.session.member import ShareMember
from flowshare.clock import LoopClock
from flowshare.ops.session import led_here
from flowshare.slots.membership import SlotMap
from tests.waiting import until


def test_a_command_leads_on_this_machine_only_and_with_the_slots_that_the_fleet_has() -> None:
    url = parse_broker("kafka://a:1?share=auto&fleet=shop&listen=0.0.0.0:9095&advertise=w:9095&state_dir=/x&slots=7")

    led = led_here(url, 4)

    assert led.options == {"share": "workers", "fleet": "shop", "listen": "127.0.0.1:0", "slots": "4"}
    assert led_here(url, 0).options["slots"] == "7"


def test_it_keeps_the_listeners_security_and_without_one_needs_none() -> None:
    secured = "listen_tls_cert=c.pem&listen_sasl_users=u&fleet_user=shop"
    url = parse_broker(f"kafka://a:1?share=workers&{secured}")
    assert led_here(url, 0).options.items() >= {"listen_tls_cert": "c.pem", "fleet_check_hostname": "false"}.items()

    command = parse_broker("kafka://a:1?share=workers&fleet_user=shop&fleet_ca_file=ca.pem")
    assert led_here(command, 0).options == {"share": "workers", "listen": "127.0.0.1:0"}


def shown(monkeypatch: pytest.MonkeyPatch, found: SlotMap | None, *words: str) -> int:
    """Exit code of `fleet leaders` where the brokers know this map."""

    @asynccontextmanager
    async def brokers(_url: object) -> AsyncIterator[str]:
        yield "brokers"

    async def described(kafka: str, fleet: str) -> SlotMap | None:
        assert (kafka, fleet) == ("brokers", "shop")
        return found

    monkeypatch.setattr("flowshare.cli.fleet.brokers_of", brokers)
    monkeypatch.setattr("flowshare.fleet.inspection.describe_fleet", described)
    with pytest.raises(SystemExit) as stop:
        main(["fleet", "leaders", "--broker", "kafka://a:1?fleet=shop", *words])
    return int(stop.value.code or 0)


def test_a_fleets_leaders_are_shown_with_their_slots(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = {1002: ("10.0.0.2", 9095), 1001: ("10.0.0.1", 9095)}
    found = SlotMap(generation=1, topic="x", slots=6, owners={0: 1001, 1: 1001, 2: 1002, 4: 1001}, nodes=nodes)

    assert shown(monkeypatch, found) == 0
    out, err = capsys.readouterr()
    assert [line.split(maxsplit=2) for line in out.splitlines()[1:]] == [
        ["1001", "10.0.0.1:9095", "0-1, 4"],
        ["1002", "10.0.0.2:9095", "2"],
    ]
    assert err == "without a leader: 3, 5\n"

    assert shown(monkeypatch, found, "--json") == 0
    assert [row["slots"] for row in json.loads(capsys.readouterr().out)] == [[0, 1, 4], [2]]


def test_a_fleet_that_nobody_leads_is_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(monkeypatch, None) == 1
    assert "nobody leads the fleet shop" in capsys.readouterr().err


async def place(url: str, group: str, topic: str) -> None:
    """A worker sets a group up and ends."""
    backend = open_backend(f"{url}&listen=127.0.0.1:0", lead=True)
    await backend.start()
    admin = ShareAdmin(lambda: backend.connect("t"), clock=LoopClock())
    await admin.place_group(group, {(topic, 0): 0})
    await admin.close()
    await backend.close()


@pytest.mark.java
def test_groups_and_their_lag_are_looked_after_while_no_worker_runs(kafka, unique, capsys) -> None:
    url = f"kafka://{kafka.addresses[0]}?share=workers&slots=2&fleet={unique('shop')}"

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([*words, "--broker", url])
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    code, _, err = run("groups", "ls")
    assert (code, "has no state" in err) == (1, True)
    topic = unique("orders")
    run("topics", "create", topic)
    run("send", topic, "x")
    assert run("groups", "seed", "jobs", "--from-consumer-group", "none", "--execute")[0] == 1  # it made the fleet
    assert run("groups", "config", "jobs", "share.auto.offset.reset=earliest")[0] == 0
    assert run("groups", "ls") == (0, "", "there are no share or cooperative groups\n")

    group = unique("pay")
    asyncio.run(place(url, group, topic))
    assert group in run("groups", "ls")[1]
    code, out, err = run("lag", "--json")
    assert code == 0, err
    [row] = json.loads(out)
    assert (row["group"], row["topic"], row["backlog"]) == (group, topic, 1)


async def joined(url: str, group: str, topic: str, look: Callable[[], Awaitable[None]]) -> None:
    """Look while a member of the group is there that has fetched nothing."""
    backend = open_backend(url)
    await backend.start()
    member = ShareMember(lambda: backend.connect("m"), group_id=group, topics=[topic], clock=LoopClock())
    await member.start()
    await until(lambda: member.assignment)
    await look()
    await member.close()
    await backend.close()


@pytest.mark.java
def test_what_brokers_do_not_know_yet_is_said_in_words(kafka, unique, capsys) -> None:
    url = f"kafka://{kafka.addresses[0]}?share=native"
    group, topic = unique("pay"), unique("orders")

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main([*words, "--broker", url])
        out, err = capsys.readouterr()
        assert not stop.value.code, err
        return str(out)

    run("topics", "create", topic)
    run("send", topic, "one")  # of a topic without records the backlog is known: 0
    shown = []

    async def look() -> None:
        for words in (("lag", "--group", group), ("lag", "--group", group, "--json"), ("groups", "describe", group)):
            shown.append(await asyncio.to_thread(run, *words))

    asyncio.run(joined(url, group, topic, look))

    table, rows, described = shown
    assert "not known yet" in table
    assert [row["backlog"] for row in json.loads(rows)] == [None]
    assert described.count("not known yet") == 2
    assert "-1" not in (table + described).replace(group, "").replace(topic, "")
