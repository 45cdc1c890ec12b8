"""Tests of the notes about queries in the process that starts them, with stand-ins for Spark's queries; and of the
ledger."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.spark.source import checkpoint
from flowshare.spark.source.checkpoint import Checkpoint, QueryNotes, find_checkpoint, local_checkpoint
from flowshare.spark.source.ledger import Entry, Ledger, StrangeCheckpoint

KILLED = (
    "Lost task 0.1 in stage 1.0 (TID 5) (there): org.apache.spark.SparkException: Python worker exited unexpectedly"
)


class Session:
    """A session with queries; `texts` has what their errors say, by run."""

    def __init__(self):
        self.streams = SimpleNamespace(active=[])
        self.texts = {}
        utils = SimpleNamespace(exceptionString=lambda error: error)
        apache = SimpleNamespace(spark=SimpleNamespace(util=SimpleNamespace(Utils=utils)))
        self.sparkContext = SimpleNamespace(_jvm=SimpleNamespace(org=SimpleNamespace(apache=apache)))

    def start(self, run, root):
        error = SimpleNamespace(isDefined=lambda: run in self.texts, get=lambda: self.texts[run])
        inner = SimpleNamespace(resolvedCheckpointRoot=lambda: str(root))
        jsq = SimpleNamespace(streamingQuery=lambda: inner, exception=lambda: error)
        self.streams.active.append(SimpleNamespace(id="query", runId=run, _jsq=jsq))

    def end(self, text=None):
        query = self.streams.active.pop()
        if text is not None:
            self.texts[query.runId] = text


def write(root, log, batch, *offsets):
    (root / log).mkdir(parents=True, exist_ok=True)
    (root / log / str(batch)).write_text("v1\n{}\n" + "".join(json.dumps(one) + "\n" for one in offsets))


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "user_folder", lambda: tmp_path / "user")
    (tmp_path / "user").mkdir(mode=0o700)
    return tmp_path / "user"


def offset(number, tag="", member="m"):
    return {"number": number, "tag": tag or f"tag {number}", "member": member}


@pytest.mark.parametrize("path", ["/data/cp", "/data/50%20off", "/data/a#b", "/data/a?b", "/data/a b", "/data/a:b"])
@pytest.mark.parametrize("before", ["", "file:", "file://"])
def test_a_checkpoint_is_where_spark_has_it_whatever_its_name_is(path, before):
    assert str(local_checkpoint(before + path).root) == path


@pytest.mark.parametrize(
    "root", ["", "cp", "../cp", "file:cp", "hdfs:/data/cp", "hdfs://host:9000/data/cp", "s3a://b/cp"]
)
def test_a_checkpoint_elsewhere_is_not_read_on_this_machine(root):
    assert local_checkpoint(root) is None


def test_only_a_query_that_ended_as_workers_were_killed_is_noted_once_a_run(tmp_path, notes):
    root = tmp_path / "cp"
    write(root, "offsets", 0, offset(1))
    session = Session()
    found, place = QueryNotes(session), Checkpoint(root)
    for run, text in (("a", KILLED), ("b", None), ("c", "java.sql.SQLException: away"), ("d", KILLED)):
        session.start(run, root)
        found.look()
        session.end(text)
        found.look()
        found.look()
    assert place.kills("m", 1) == 2
    assert place.kills("m", 2) == 0

    write(root, "commits", 0, {})
    session.start("e", root)
    found.look()
    session.end(KILLED)
    found.last_look()
    assert place.kills("m", 1) == 2, "no batch was under way"

    write(root, "offsets", 1, offset(2), "-")
    session.start("f", root)
    found.look()
    session.end(KILLED)
    found.last_look()
    assert (place.kills("m", 1), place.kills("m", 2)) == (0, 1)


def test_of_copies_the_one_is_found_that_holds_the_newest_batch(tmp_path, notes):
    for name, tags in (("one", ("a", "b")), ("two", ("a", "c"))):
        for number, tag in enumerate(tags):
            write(tmp_path / name, "offsets", number, offset(number + 1, tag))
        (notes / f"{name}.query").write_text(str(tmp_path / name))

    assert find_checkpoint("m", "b").root == tmp_path / "one"
    assert find_checkpoint("m", "c").root == tmp_path / "two"
    assert find_checkpoint("m", "d") is None, "neither is known to be this query's"
    assert find_checkpoint("other", "b") is None
    (notes / "two.query").unlink()
    assert find_checkpoint("m", "d").root == tmp_path / "one", "there is no other"


# --- the ledger -------------------------------------------------------------------------------------------------------


class Admin:
    """A consumer group's committed offsets; `refuses` is what it answers."""

    def __init__(self):
        self.kept, self.refuses = {}, None

    async def committed_offsets(self, group):
        self._refuse()
        return [SimpleNamespace(offset=one.offset, metadata=one.metadata) for one in self.kept.values()]

    async def commit_offsets(self, group, offsets):
        self._refuse()
        self.kept |= {(one.topic, one.partition): one for one in offsets}

    def _refuse(self):
        if self.refuses is not None:
            raise ServerError(self.refuses)


@pytest.mark.parametrize(
    ("known", "refused"),
    [
        (Entry(6, "x"), ""),
        (Entry(5, "five"), ""),
        (Entry(5, "another"), "is a copy of one that went on"),
        (Entry(4, "four"), "is older than the group"),
    ],
)
def test_a_checkpoint_is_held_against_the_batch_that_was_accepted_last(known, refused):
    async def check():
        admin = Admin()
        ledger = Ledger(admin, "etl", "m")
        await ledger.check(known)  # nothing is known of a new one
        await ledger.note(Entry(4, "four", "b"))
        await ledger.note(Entry(5, "five", "a"))
        await ledger.note(Entry(6, "void"))
        await ledger.check(known)

    if refused:
        with pytest.raises(StrangeCheckpoint, match=f"{refused}: it has batch {known.number} .*flowshare-spark-m"):
            asyncio.run(check())
    else:
        asyncio.run(check())


def test_who_may_not_keep_a_ledger_is_told_once_and_goes_on(caplog):
    async def keep():
        admin = Admin()
        ledger = Ledger(admin, "etl", "m")
        admin.refuses = ErrorCode.GROUP_AUTHORIZATION_FAILED
        await ledger.check(Entry(1, "a"))
        await ledger.note(Entry(1, "a", "t"))
        await ledger.note(Entry(2, "b", "t"))
        admin.refuses = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(ServerError):
            await ledger.note(Entry(3, "c", "t"))
        admin.refuses = None
        await ledger.note(Entry(3, "c", "t"))
        return admin.kept

    assert [one.offset for one in asyncio.run(keep()).values()] == [3]
    assert caplog.text.count("a copy of the checkpoint would not be recognised") == 1
