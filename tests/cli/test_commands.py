"""Commands as a user runs them, on a log in memory that outlives each of them."""

import asyncio
import json

import pytest

from flowshare.agents.pages.own_user import Answer
from flowshare.backend.memory import MemoryBackend
from flowshare.cli import main
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import ServerError
from flowshare.client.producer.producer import Message, Producer
from flowshare.client.session.member import ShareMember
from flowshare.clock import LoopClock
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ShareBreakerResponse


class Kept(MemoryStorage):
    """It outlives the backends over it."""

    async def close(self):
        pass


class Shell:
    """Runs commands, and code beside them, on one log."""

    def __init__(self, capsys, monkeypatch):
        self._capsys = capsys
        storage = Kept(LoopClock())
        monkeypatch.setattr("flowshare.log.memory.MemoryStorage", lambda _clock: storage)
        monkeypatch.setenv("FLOWSHARE_BROKER", "memory://")
        monkeypatch.setattr("flowshare.cli.lag._SAMPLE_S", 0.01)
        monkeypatch.setattr("flowshare.ops.session.open_backend", lambda _url, **_: self.backend())

    def backend(self):
        return MemoryBackend(clock=LoopClock())

    def __call__(self, *args, code=0):
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        out, err = self._capsys.readouterr()
        assert stop.value.code == code, (out, err)
        return out if code == 0 else err

    def both(self, *args):
        """Run a command and return its output: stderr, then stdout, which holds the answer."""
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        out, err = self._capsys.readouterr()
        assert stop.value.code == 0, (out, err)
        return err + out

    def json(self, *args):
        return json.loads(self(*args, "--json"))

    def beside(self, function):
        async def call():
            backend = self.backend()
            await backend.start()
            try:
                return await function(lambda: backend.connect("test"))
            finally:
                await backend.close()

        return asyncio.run(call())


@pytest.fixture
def shell(capsys, monkeypatch):
    return Shell(capsys, monkeypatch)


def test_a_path_with_a_name_too_long_says_to_name_a_shorter_one(shell):
    said = shell("topics", "ls", "--broker", f"embedded:///tmp/{'x' * 300}", code=1)

    assert "cannot be used as a storage: File name too long; name a shorter path in the broker URL" in said
    assert "OSError" not in said


def test_topics_are_made_listed_described_and_deleted(shell):
    assert shell("topics", "create", "orders", "-p", "3") == "created topic orders with 3 partitions\n"
    shell("send", "orders", "x", "--key", "a")

    assert shell("topics", "ls").splitlines()[1].split() == ["orders", "3", "1"]
    described = shell.json("topics", "describe", "orders")
    assert [part["offsets"] for part in described["partitions"]].count(1) == 1
    assert shell("topics", "delete", "orders", "--yes") == "deleted topic orders\n"
    assert shell.json("topics", "ls") == []


def test_an_internal_topic_is_deleted_with_an_option_of_its_own_and_nobody_is_asked_before(shell):
    name = "__flowshare_state.shop"
    for yes in ([], ["--yes"]):
        err = shell("topics", "delete", name, *yes, code=1)
        assert "records that were finished run again" in err
        assert err.rstrip().endswith(f"`flowshare topics delete {name} --internal`")

    asked = shell("topics", "delete", name, "--internal", "--yes", code=1)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in asked  # it came to the brokers


def test_partitions_are_added_where_no_order_of_keys_breaks_or_when_told_to(shell):
    shell("topics", "create", "orders")
    assert shell("topics", "grow", "orders", "-p", "2") == "topic orders has 2 partitions\n"
    shell.beside(member_of("g1", "orders"))
    shell("groups", "config", "g1", "share.key.order=key")

    err = shell("topics", "grow", "orders", "-p", "3", code=1)
    assert "in the order of keys by g1 (share.key.order, or a cooperative group)" in err
    assert "`flowshare topics grow orders --partitions 3 --breaks-order`" in err
    assert len(shell.json("topics", "describe", "orders")["partitions"]) == 2
    assert "--breaks-order" not in shell("topics", "grow", "orders", "-p", "2", code=1)  # it has so many

    assert shell("topics", "grow", "orders", "-p", "3", "--breaks-order") == "topic orders has 3 partitions\n"
    assert len(shell.json("topics", "describe", "orders")["partitions"]) == 3


def test_a_missing_topic_is_one_line(shell):
    err = shell("topics", "describe", "nope", code=1)

    assert err.count("\n") == 1
    assert "nope" in err
    assert "Traceback" not in err


def test_a_sent_record_says_where_it_went(shell):
    assert shell("send", "orders", "{}", "--header", "a=b") == "sent to orders-0@0\n"
    assert shell.json("send", "orders", "{}") == {"topic": "orders", "sent": 1, "last": {"partition": 0, "offset": 1}}


def test_lines_of_a_file_are_records(shell, tmp_path):
    path = tmp_path / "orders.jsonl"
    path.write_text('{"id": 1}\n\n{"id": 2}\n{"id": 3}')

    out = shell("send", "orders", "--file", str(path), "--lines")

    assert out.startswith("sent 3 records to orders in")
    values = shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).read("orders", 0))
    assert [record.value for record in values] == [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}']


def test_a_record_is_as_large_as_the_app_says_where_the_error_says_it(shell, tmp_path, monkeypatch):
    large = tmp_path / "large"
    large.write_bytes(b"x" * 1_500_000)
    shell("topics", "create", "blobs", "--config", "max.message.bytes=3000000")
    for number, option in ((1, ""), (2, ", producer_max_request_size=2_000_000")):
        app = f"import flowshare as fs\napp = fs.App('large', broker='memory://'{option})\n"
        (tmp_path / f"large{number}.py").write_text(app)
    monkeypatch.chdir(tmp_path)

    assert "producer_max_request_size" in shell("send", "blobs", "--file", str(large), "--app", "large1:app", code=1)
    assert shell("send", "blobs", "--file", str(large), "--app", "large2:app") == "sent to blobs-0@0\n"


@pytest.mark.parametrize(
    "args",
    [("orders", "x", "--file", __file__), ("orders", "x", "--lines"), ("orders", "x", "--header", "novalue")],
)
def test_send_refuses_what_contradicts_itself(shell, args):
    shell("send", *args, code=2)


def member_of(group, topic):
    async def call(connect):
        await Producer(connect, clock=LoopClock()).send_many(topic, [b"a", b"b", b"c"])
        await ShareAdmin(connect, clock=LoopClock()).alter_group_configs(group, {"share.auto.offset.reset": "earliest"})
        member = ShareMember(connect, group_id=group, topics=(topic,), clock=LoopClock())
        await member.start()
        fetched = await member.fetch(records_max=1)
        assert fetched
        await member.close()

    return call


def test_groups_are_listed_described_reset_configured_and_deleted(shell):
    shell.beside(member_of("g1", "orders"))

    assert shell.json("groups", "ls") == [{"group": "g1", "kind": "share", "state": "Empty"}]
    assert shell.json("groups", "describe", "g1")["offsets"][0]["backlog"] == 3
    assert shell.json("groups", "members", "g1") == []
    shown = shell.json("groups", "reset-offsets", "g1", "--to-latest")
    assert shown == [{"topic": "orders", "partition": 0, "from": 0, "to": 3}]
    assert shell.json("lag")[0]["backlog"] == 3
    shell("groups", "reset-offsets", "g1", "--to-latest", "--execute")
    assert shell.json("lag")[0]["backlog"] == 0
    shell("groups", "config", "g1", "share.record.lock.duration.ms=60000")
    configs = {row["name"]: row["value"] for row in shell.json("groups", "config", "g1")}
    assert configs["share.record.lock.duration.ms"] == "60000"
    shell("groups", "delete-offsets", "g1", "--topic", "orders")
    shell("groups", "delete", "g1", "--yes")
    assert shell.json("groups", "ls") == []


def test_a_group_is_paused_and_resumed_and_described_so(shell):
    shell.beside(member_of("g1", "orders"))
    assert "paused" not in shell("groups", "describe", "g1")

    assert "groups resume g1" in shell("groups", "pause", "g1")
    shell("groups", "config", "g1", "share.max.in.flight=7", "share.max.rate=10/m", "share.delivery.priority=new")
    line = shell("groups", "describe", "g1").splitlines()[0]
    facts = shell.json("groups", "describe", "g1")
    shell("groups", "resume", "g1")

    assert line.endswith(", paused, at most 7 in flight, at most 10/m, priority new")
    assert (facts["paused"], facts["max_in_flight"], facts["max_rate"]) == (True, 7, "10/m")
    assert facts["priority"] == "new"
    assert shell.json("groups", "describe", "g1")["paused"] is False


def test_resume_closes_a_breaker_and_describe_shows_it(shell, monkeypatch):
    shell.beside(member_of("g1", "orders"))
    shell("groups", "config", "g1", "share.breaker.failure.percent=50")
    closed = []

    async def told(_, group_id):
        state = "closed" if closed else "open"
        return ShareBreakerResponse(state=state, why="18 of the last 20 outcomes failed", left_ms=4_000)

    async def close(_, group_id):
        closed.append(group_id)

    monkeypatch.setattr(ShareAdmin, "breaker", told)
    monkeypatch.setattr(ShareAdmin, "close_breaker", close)
    line = shell("groups", "describe", "g1").splitlines()[0]
    assert line.endswith(", breaker open as 18 of the last 20 outcomes failed, tries one record in 4.0 s")
    assert "its breaker is open" in shell("top")

    shell("groups", "resume", "g1")
    assert closed == ["g1"]
    assert "breaker" not in shell("groups", "describe", "g1").splitlines()[0]
    assert shell.json("groups", "describe", "g1")["breaker"]["state"] == "closed"


def test_a_group_that_is_not_there_is_not_paused(shell):
    shell.beside(member_of("g1", "orders"))

    assert "g2" in shell("groups", "pause", "g2", code=1)


def test_an_unknown_group_setting_names_the_nearest(shell):
    shell.beside(member_of("g1", "orders"))

    err = shell("groups", "config", "g1", "share.record.lock.duration=1", code=1)

    assert "share.record.lock.duration.ms" in err


def test_where_to_reset_must_be_said_once(shell):
    shell("groups", "reset-offsets", "g1", code=2)
    shell("groups", "reset-offsets", "g1", "--to-latest", "--to-earliest", code=2)
    shell("groups", "reset-offsets", "g1", "--to-datetime", "yesterday", code=2)


def letters(*reasons):
    async def call(connect):
        messages = [
            Message(
                f"value {number}".encode(),
                b"k",
                (
                    ("trace-id", b"7"),
                    ("flowshare.dlq.reason", reason.encode()),
                    ("flowshare.dlq.exception", b"builtins.ValueError"),
                    ("flowshare.dlq.topic", b"orders"),
                    ("flowshare.dlq.partition", b"0"),
                    ("flowshare.dlq.offset", str(number).encode()),
                    ("flowshare.dlq.attempts", b"5"),
                    ("flowshare.dlq.agent", b"bill"),
                ),
            )
            for number, reason in enumerate(reasons)
        ]
        producer = Producer(connect, clock=LoopClock())
        await producer.send_many("shop.bill.dlq", messages)
        await producer.close()

    return call


def test_dead_letters_say_why_and_where_from(shell):
    shell.beside(letters("negative total", "no customer"))

    assert shell.json("dlq", "ls")[0]["letters"] == 2
    out = shell("dlq", "show", "shop.bill.dlq", "--values")
    assert "orders-0@1" in out
    assert "no customer" in out
    assert "value 0" in out
    only = shell.json("dlq", "show", "shop.bill.dlq", "--reason", "TOTAL", "--exception", "ValueError")
    assert [letter["offset"] for letter in only] == [0]


def test_replayed_letters_are_as_they_were(shell):
    shell.beside(letters("negative total", "no customer", "no customer"))

    assert shell("dlq", "replay", "shop.bill.dlq", "--dry-run") == "3 would be replayed to orders\n"
    out = shell("dlq", "replay", "shop.bill.dlq", "--reason", "customer", "--limit", "1")
    assert out == "1 replayed to orders\n"
    [record] = shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).read("orders", 0))
    assert (record.key, record.value, list(record.headers)) == (b"k", b"value 1", [("trace-id", b"7")])


@pytest.mark.parametrize("command", [("show",), ("replay",), ("replay", "--dry-run"), ("replay", "--at", "0@0")])
def test_a_group_s_name_instead_of_its_dead_letter_topic_is_told_where_they_are(shell, command):
    shell("topics", "create", "g1.dlq")
    name, *options = command

    assert "the dead letters of the group are in g1.dlq" in shell("dlq", name, "g1", *options, code=1)


def test_a_letter_without_its_record_is_never_sent_as_a_tombstone(shell):
    async def bare(connect):
        producer = Producer(connect, clock=LoopClock())
        headers = (("flowshare.dlq.topic", b"orders"), ("flowshare.dlq.left_out", b"key, value (9 bytes with it)"))
        await producer.send("shop.bill.dlq", None, headers=headers)
        await producer.close()

    shell.beside(letters("a"))
    shell.beside(bare)

    error = shell("dlq", "replay", "shop.bill.dlq", "--delete", code=1)

    assert "nothing is deleted: 1 without the record" in error
    assert shell.json("dlq", "ls")[0]["letters"] == 2
    found = shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).read("orders", 0))
    assert [record.value for record in found] == [b"value 0"]


def test_one_letter_can_be_replayed_by_the_place_that_is_shown(shell):
    shell.beside(letters("a", "b", "c"))
    [_, second, third] = [letter["at"] for letter in shell.json("dlq", "show", "shop.bill.dlq")]

    assert shell("dlq", "replay", "shop.bill.dlq", "--at", second) == "1 replayed to orders\n"
    assert shell("dlq", "replay", "shop.bill.dlq", "--at", third.removeprefix("shop.bill.dlq-")) == (
        "1 replayed to orders\n"
    )
    found = shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).read("orders", 0))
    assert [record.value for record in found] == [b"value 1", b"value 2"]
    assert "there is no letter at" in shell("dlq", "replay", "shop.bill.dlq", "--at", "0@17", code=1)
    assert "is no place of" in shell("dlq", "replay", "shop.bill.dlq", "--at", "seventeen", code=2)


def test_nothing_is_replayed_that_could_not_be_remembered(shell, monkeypatch):
    async def refused(self, group_id, offsets):
        raise ServerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, about=f"offsets of {group_id}")

    shell.beside(letters("a", "b", "c"))
    with monkeypatch.context() as refusing:
        refusing.setattr(ShareAdmin, "commit_offsets", refused)
        assert "shop.bill.dlq.replayed" in shell("dlq", "replay", "shop.bill.dlq", code=1)

    assert shell.json("dlq", "replay", "shop.bill.dlq", "--dry-run")["replayed"] == {"orders": 3}


def test_a_second_replay_leaves_out_what_the_first_one_sent(shell):
    shell.beside(letters("a", "b", "c"))

    assert shell("dlq", "replay", "shop.bill.dlq", "--at", "0@1") == "1 replayed to orders\n"
    assert shell.json("dlq", "replay", "shop.bill.dlq", "--at", "0@1")["replayed_before"] == 1
    assert shell.json("dlq", "replay", "shop.bill.dlq", "--dry-run")["replayed"] == {"orders": 2}
    assert shell("dlq", "replay", "shop.bill.dlq", "--limit", "2") == "2 replayed to orders\n"
    assert shell.json("dlq", "replay", "shop.bill.dlq") == {
        "topic": "shop.bill.dlq",
        "replayed": {},
        "replayed_before": 3,
        "refused": 0,
        "dry_run": False,
    }
    assert shell("dlq", "replay", "shop.bill.dlq", "--again") == "3 replayed to orders\n"
    shell.beside(letters("d"))
    assert shell.json("dlq", "replay", "shop.bill.dlq")["replayed"] == {"orders": 1}
    found = shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).read("orders", 0))
    assert len(found) == 7


def test_letters_that_were_replayed_are_told_as_that(shell):
    shell.beside(letters("a", "b", "c"))
    shell("dlq", "replay", "shop.bill.dlq", "--at", "0@1")

    [row] = shell.json("dlq", "ls")
    shown = shell.json("dlq", "show", "shop.bill.dlq")
    table = shell("dlq", "show", "shop.bill.dlq").splitlines()

    assert (row["letters"], row["replayed"]) == (3, 1)
    assert [one["replayed"] for one in shown] == [False, True, False]
    assert [one.split()[4] for one in table] == ["REPLAYED", "no", "yes", "no"]
    shell("dlq", "replay", "shop.bill.dlq", "--limit", "1", "--delete")
    [row] = shell.json("dlq", "ls")
    assert (row["letters"], row["replayed"]) == (2, 1)


def test_which_letters_were_replayed_is_not_known_where_it_may_not_be_read(shell, monkeypatch):
    async def refused(self, group_id):
        raise ServerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, about=f"offsets of {group_id}")

    shell.beside(letters("a"))
    monkeypatch.setattr(ShareAdmin, "committed_offsets", refused)

    assert shell.json("dlq", "ls")[0]["replayed"] is None
    assert shell.json("dlq", "show", "shop.bill.dlq")[0]["replayed"] is None


@pytest.mark.parametrize("rate", [(), ("--rate", "1000")])
def test_a_replay_of_old_letters_is_new_to_a_topic_that_would_delete_or_refuse_old_records(shell, rate):
    old_s = LoopClock().now_ms() / 1000 - 40 * 86_400

    async def of_long_ago(connect):
        producer = Producer(connect, clock=LoopClock())
        headers = (("flowshare.dlq.topic", b"orders"), ("flowshare.dlq.timestamp", str(int(old_s * 1000)).encode()))
        await producer.send_many("shop.bill.dlq", [Message(b"x", b"k", headers, old_s), Message(b"y", b"k", headers)])
        await producer.close()

    limits = ("retention.ms=3600000", "message.timestamp.before.max.ms=3600000")
    shell("topics", "create", "orders", *(word for one in limits for word in ("--config", one)))
    shell.beside(of_long_ago)

    assert shell("dlq", "replay", "shop.bill.dlq", *rate) == "2 replayed to orders\n"
    found = shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).read("orders", 0))
    assert [record.value for record in found] == [b"x", b"y"]
    assert all(LoopClock().now_ms() / 1000 - record.timestamp_ms / 1000 < 3_600 for record in found)


@pytest.mark.parametrize("topic", [b"../../x", b"x" * 40_000])
def test_a_letter_whose_topic_cannot_be_made_or_that_is_too_large_stops_no_other(shell, monkeypatch, topic):
    async def forged(connect):
        producer = Producer(connect, clock=LoopClock())
        values = [(b"a", b"orders"), (b"b", topic), (b"c" * 5_000, b"orders"), (b"d", b"others"), (b"e", b"orders")]
        await producer.send_many(
            "shop.bill.dlq", [Message(value, b"k", (("flowshare.dlq.topic", to),)) for value, to in values]
        )
        await producer.close()

    shell("topics", "create", "orders", "--config", "max.message.bytes=1000")
    shell.beside(forged)
    monkeypatch.setattr("flowshare.ops.replay.ROUND", 2)  # the letters behind a round's are not stopped either

    error = shell("dlq", "replay", "shop.bill.dlq", code=1)
    assert "2 cannot be sent: shop.bill.dlq-0@1 (" in error
    assert "; shop.bill.dlq-0@2 (" in error
    found = [
        record.value
        for name in ("orders", "others")
        for record in shell.beside(lambda connect, name=name: ShareAdmin(connect, clock=LoopClock()).read(name, 0))
    ]
    assert found == [b"a", b"e", b"d"]
    assert "2 cannot be sent" in shell("dlq", "replay", "shop.bill.dlq", "--reason", "", code=1)
    assert "nothing is deleted: 2 cannot" in shell("dlq", "replay", "shop.bill.dlq", "--delete", code=1)


def test_a_replay_of_letters_that_are_not_there_ends_with_status_1_and_one_of_an_empty_topic_does_not(shell):
    shell.beside(letters("a"))

    assert "no dead letter of shop.bill.dlq matches" in shell("dlq", "replay", "shop.bill.dlq", "--reason", "x", code=1)
    shell("dlq", "replay", "shop.bill.dlq", "--reason", "a")
    again = shell("dlq", "replay", "shop.bill.dlq", "--reason", "a", code=1)
    assert "nothing is replayed: 1 were replayed before; --again sends them too" in again
    shell("dlq", "replay", "shop.bill.dlq", "--reason", "a", "--again")
    shell("dlq", "replay", "shop.bill.dlq")


def test_a_topic_that_looks_like_another_one_is_asked_about_when_a_record_makes_it(shell):
    shell("send", "orders", "x")

    assert "did you mean orders? If so: flowshare topics delete ordres" in shell.both("send", "ordres", "x")
    assert "did you mean" not in shell.both("send", "invoices", "x")
    assert "did you mean" not in shell.both("send", "ordres", "x")


MEANT = """
import flowshare as fs

app = fs.App("meant", broker="memory://")


@app.share_agent("orders")
async def bill(value: str) -> None: ...
"""


@pytest.mark.parametrize(
    ("there", "topic", "app"),
    [
        ("orders", "orders.dlq", ()),
        ("shop.orders", "shop.orders.retry", ()),
        ("payments", "shipments", ()),
        ("orderz", "orders", ("--app", "meant:app")),
    ],
)
def test_a_topic_that_is_meant_is_not_asked_about(shell, tmp_path, monkeypatch, there, topic, app):
    (tmp_path / "meant.py").write_text(MEANT)
    monkeypatch.syspath_prepend(tmp_path)
    shell("send", there, "x")

    told = shell.both("send", topic, "x", *app)
    assert f"created topic {topic}" in told
    assert "did you mean" not in told


def test_replay_can_delete_what_it_replayed(shell):
    shell.beside(letters("a", "b", "c"))
    shell("topics", "create", "elsewhere")

    shell("dlq", "replay", "shop.bill.dlq", "--to", "elsewhere", "--limit", "2", "--delete")

    assert [letter["reason"] for letter in shell.json("dlq", "show", "shop.bill.dlq")] == ["c"]
    assert shell.json("topics", "describe", "elsewhere")["partitions"][0]["offsets"] == 2
    shell("dlq", "replay", "shop.bill.dlq", "--delete", "--agent", "bill", code=2)


def test_a_reset_can_be_asked_to_be_dry_and_is_not_both(shell):
    shell("send", "orders", "x")
    shell.beside(lambda connect: shell_group(connect))

    assert "nothing was changed" in reset_text(shell, "--dry-run")
    assert "not both" in shell("groups", "reset-offsets", "g", "--to-latest", "--dry-run", "--execute", code=2)


async def shell_group(connect):
    admin = ShareAdmin(connect, clock=LoopClock())
    await admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"})
    member = ShareMember(connect, group_id="g", topics=["orders"], clock=LoopClock())
    await member.start()
    await member.fetch(records_max=1)
    await member.close()
    await admin.close()


def reset_text(shell, *options):
    with pytest.raises(SystemExit):
        main(["groups", "reset-offsets", "g", "--to-latest", *options])
    return "".join(shell._capsys.readouterr())


def test_lag_is_a_row_a_topic_or_a_share_partition(shell):
    shell("topics", "create", "orders", "-p", "2")
    shell.beside(member_of("g1", "orders"))

    [topic] = shell.json("lag")
    parts = shell.json("lag", "--partitions")
    table = shell("lag")

    assert (topic["partitions"], topic["backlog"], topic["retention"]) == (2, 3, "kept for ever")
    assert [part["partition"] for part in parts] == [0, 1]
    assert sum(part["backlog"] for part in parts) == 3
    assert "oldest" not in topic
    assert topic["oldest_age_s"] >= 0
    assert "NEEDED WORKERS" in table
    assert table.splitlines()[1].split()[-1] == "never"


def test_lag_says_when_retention_comes_and_when_nobody_knows(shell, monkeypatch):
    shell("topics", "create", "orders", "--config", "retention.ms=7200000")
    shell.beside(member_of("g1", "orders"))

    assert shell("lag").rstrip().endswith("1 h 59 m")
    assert 7100 < shell.json("lag")[0]["retention_left_s"] < 7200
    monkeypatch.setattr("flowshare.client.admin.admin.ShareAdmin.topic_configs", refused)
    assert shell("lag").rstrip().endswith("unknown")
    assert "not allowed" in shell.json("lag")[0]["retention"]


async def refused(*_):
    raise ServerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed")


def test_lag_asks_a_named_worker_what_is_needed(shell, monkeypatch):
    shell.beside(member_of("g1", "orders"))
    asked = []

    def page(address, page, **_):
        asked.append((address, page))
        return Answer(200, "application/json", b'[{"group": "g1", "topic": "orders", "needed_workers": 2.5}]')

    monkeypatch.setattr("flowshare.agents.pages.own_user.ask", page)

    [row] = shell.json("lag", "--web", "127.0.0.1:8081")

    assert row["needed_workers"] == 2.5
    assert row["arrival_rate"] == 0
    assert ("127.0.0.1:8081", "/lag?topics=1") in asked


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--min", "3", "--max", "2"), "--min 3 is more than --max 2"),
        (("--max", "4", "--target-age", "soon"), "10s, 500ms or 2m"),
        (("--max", "4", "--target-age", "0"), "10s, 500ms or 2m"),
        ((), "--max"),
    ],
)
def test_a_fleet_that_cannot_be_scaled_so_is_refused(shell, args, said):
    assert said in shell("scale", "app:app", *args, code=2)


def test_a_worker_that_does_not_answer_cannot_be_drained(shell):
    assert "no worker answers at http://127.0.0.1:1/drain" in shell("drain", "--web", "127.0.0.1:1", code=1)


def test_the_lag_of_a_group_or_topic_that_is_not_there_says_which_are(shell):
    shell("send", "orders", "x")
    shell.beside(lambda connect: shell_group(connect))

    assert "no group has a position of group 'h'; there are positions of g" in shell("lag", "--group", "h", code=1)
    assert "position of topic 'order'; there are positions of orders" in shell("lag", "--topic", "order", code=1)
    assert [row["group"] for row in shell.json("lag", "--group", "g")] == ["g"]


def test_a_topic_without_dead_letters_is_told_so(shell):
    shell("send", "orders", "x")

    assert "1 record of orders is no dead letter" in shell("dlq", "show", "orders", code=1)


def test_dead_letters_of_the_server_are_shown_and_replayed_like_an_agents(shell):
    facts = {
        "topic": "orders",
        "partition": "0",
        "offset": "7",
        "group": "g",
        "delivery.count": "10",
        "message": "limit",
    }
    headers = [word for name, text in facts.items() for word in ("--header", f"__dlq.errors.{name}={text}")]
    shell("send", "g.dlq", "x", "--header", "mine=1", *headers)

    [letter] = shell.json("dlq", "show", "g.dlq", "--values")
    assert (letter["origin"], letter["attempts"], letter["reason"]) == ("orders-0@7", 10, "limit")
    assert letter["headers"] == {"mine": "1"}
    assert shell("dlq", "replay", "g.dlq") == "1 replayed to orders\n"


def test_a_value_that_an_agent_of_the_app_cannot_decode_is_warned_of(shell, tmp_path, monkeypatch):
    (tmp_path / "warned_app.py").write_text(
        "import flowshare as fs\n"
        "app = fs.App('w', broker='memory://')\n"
        "@app.share_agent('orders')\n"
        "async def bill(order: dict) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["send", "orders", "{bad", "--app", "warned_app:app"])
    out, err = shell._capsys.readouterr()

    assert out == "sent to orders-0@0\n"
    assert "warning: agent bill will not take it: the value b'{bad' does not fit dict" in err


def test_a_topic_setting_that_is_refused_does_not_blame_the_name(shell):
    err = shell("topics", "create", "orders", "--config", "retention.mss=1", code=1)

    assert "INVALID_CONFIG: topic setting 'retention.mss' is unknown; did you mean retention.ms?" in err


def test_what_is_in_flight_on_a_broker_that_knows_no_workers_is_asked_by_address(shell):
    assert "name them by --web host:port" in shell("inflight", "--broker", "kafka://somewhere:9092", code=1)
    assert "no worker answers at http://127.0.0.1:1/inflight" in shell("inflight", "--web", "127.0.0.1:1", code=1)
    assert "'here' is not HOST:PORT" in shell("inflight", "--web", "here", code=2)


def test_what_is_in_flight_on_a_path_without_workers_says_so(shell, tmp_path):
    assert "no worker runs on embedded://" in shell("inflight", "--broker", f"embedded://{tmp_path}", code=1)


def test_a_first_record_makes_the_topic_as_the_app_declares_it(shell, tmp_path, monkeypatch, capsys):
    (tmp_path / "declares.py").write_text(
        "import flowshare as fs\n"
        "app = fs.App('shop', broker='memory://')\n"
        "@app.share_agent(app.topic('orders', value_type=str, partitions=5, config={'retention.ms': 7000}))\n"
        "async def bill(order: str) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    shell("send", "orders", "one", "--app", "declares:app")
    shell("send", "others", "one", "--app", "declares:app")

    topics = {one["topic"]: one["partitions"] for one in shell.json("topics", "ls")}
    assert (topics["orders"], topics["others"]) == (5, 1)
    settings = shell.beside(lambda connect: ShareAdmin(connect, clock=LoopClock()).topic_configs("orders"))
    assert {one.name: one.value for one in settings}["retention.ms"] == "7000"
