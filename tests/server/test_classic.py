"""Consumer groups through the server: waiting requests, what is durable, restarts, deletion."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from flowshare.core_errors import InvalidConfig
from flowshare.groups.stored import decode_group, encode_group
from flowshare.groups.types import ClassicConfig, Supported
from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    DeleteTopicRequest,
    DescribeGroupRequest,
    LeavingMember,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from flowshare.server.groups.members import MEMBER_BYTES_MAX
from flowshare.server.groups.store import GROUPS, OFFSETS, PENDING
from flowshare.server.runtime.coordinator import PUT_OFF_MS, RETRY_MS
from flowshare.server.settings import CLASSIC_CONFIGS, Settings
from flowshare.server.transactions.coordinator import PREFIX
from flowshare.testing.clock import settle
from tests.server.classic_world import NONE, refuse, world
from tests.server.world import given_up, parked

pytestmark = pytest.mark.asyncio

# --- members ----------------------------------------------------------------------------------------------------------


async def test_members_wait_for_each_other_and_for_the_leaders_assignments() -> None:
    async with world() as w:
        one = await w.stable()
        second = await parked(w.join())
        assert await w.beat(one, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        first = await w.join(one)
        second = await second
        assert (first.generation, first.leader, len(first.members)) == (2, one, 2)
        assert second.members == ()

        waits = await parked(w.sync(second.member_id, 2))
        await w.sync(one, 2, [(one, b"1"), (second.member_id, b"2")])

        assert (await waits).assignment == b"2"
        assert await w.beat(second.member_id, 2) is NONE


async def test_a_new_client_is_told_its_id_first() -> None:
    async with world() as w:
        told = await w.join(version=4)
        assert told.error is ErrorCode.MEMBER_ID_REQUIRED
        joined = await w.join(told.member_id, version=4)
        assert (joined.error, joined.member_id) == (NONE, told.member_id)
        assert told.member_id.startswith("c-")


async def test_assignments_are_durable_before_anybody_has_them() -> None:
    async with world() as w:
        joined = await w.join()
        hold = asyncio.Event()
        w.storage.before_write = hold.wait
        waits = await parked(w.sync(joined.member_id, 1, [(joined.member_id, b"mine")]))
        hold.set()
        assert (await waits).assignment == b"mine"


async def test_assignments_that_cannot_be_written_are_told_to_nobody() -> None:
    async with world() as w:
        joined = await w.join()
        w.storage.before_write = refuse
        answer = await w.sync(joined.member_id, 1, [(joined.member_id, b"mine")])
        assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        w.storage.before_write = None
        assert (await w.join(joined.member_id)).generation == 2


async def test_a_later_state_is_written_though_assignments_before_it_could_not_be() -> None:
    async with world() as w:
        one = await w.stable()
        await w.commit(member_id=one, generation=1)
        joined = await w.join(one, topics=("t", "u"))
        goes_on = asyncio.Event()

        async def fail() -> None:
            await goes_on.wait()
            await refuse()

        w.storage.before_write = fail
        syncing = await parked(w.sync(one, joined.generation, [(one, b"x")]))
        leaving = await parked(w.leave(one))
        goes_on.set()
        assert (await syncing).error is not NONE
        assert (await leaving).error is not NONE
        w.storage.before_write = None

        await w.clock.advance(RETRY_MS / 1000)

        await w.restart()
        assert await w.groups() == {"g": ("classic", "Empty", "consumer")}


async def test_a_closed_connection_leaves_the_member_until_its_session_times_out() -> None:
    async with world() as w:
        connection = w.server.connect(client_id="c", host="10.0.0.7")
        joined = await w.join(connection=connection)
        await w.sync(joined.member_id, 1, [(joined.member_id, b"mine")])
        await w.commit(member_id=joined.member_id, generation=1)
        await connection.close()
        await w.clock.advance(9.9)
        assert (await w.groups())["g"] == ("classic", "Stable", "consumer")
        await w.clock.advance(0.2)
        assert (await w.groups())["g"] == ("classic", "Empty", "consumer")


async def test_a_join_whose_connection_is_closed_waits_no_longer() -> None:
    async with world() as w:
        await w.stable()
        connection = w.server.connect(client_id="c")
        waits = await parked(w.join(connection=connection))
        await connection.close()
        with pytest.raises(ConnectionError):
            await waits
        assert not w.server.classic.waiting._places


async def test_a_join_waits_no_longer_than_the_rebalance_timeout_for_members_that_are_gone() -> None:
    async with world() as w:
        await w.stable()
        waits = await parked(w.join())
        await w.clock.advance(10.0)
        answer = await waits
        assert (answer.error, answer.generation, len(answer.members)) == (NONE, 2, 1)


async def test_a_server_that_closes_ends_all_waiting() -> None:
    async with world() as w:
        await w.stable()
        waits = await parked(w.join())
        await w.server.close()
        with pytest.raises(ConnectionError):
            await waits
        await w.restart()


async def test_several_members_leave_at_once_each_with_its_result() -> None:
    async with world() as w:
        joined = await w.join(instance="a")
        await w.sync(joined.member_id, 1, instance="a")
        answer = await w.leave(LeavingMember("", "a"), LeavingMember("stranger"), LeavingMember("x", "nobody"))
        assert [one.error for one in answer.members] == [
            NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ]
        assert (await w.leave("m", group="none")).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_leave_that_cannot_be_written_is_not_confirmed_and_written_later() -> None:
    async with world() as w:
        one = await w.stable()
        await w.commit(member_id=one, generation=1)
        w.storage.before_write = refuse
        assert (await w.leave(one)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        w.storage.before_write = None
        await w.clock.advance(2.0)
        await w.restart()
        assert (await w.groups())["g"] == ("classic", "Empty", "consumer")


async def test_requests_of_members_nobody_knows_leave_no_group_behind() -> None:
    async with world() as w:
        assert (await w.join("stranger")).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await w.join(session_timeout_ms=1)).error is ErrorCode.INVALID_SESSION_TIMEOUT
        assert (await w.join(protocols=())).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await w.join(group="")).error is ErrorCode.INVALID_GROUP_ID
        assert (await w.join(group="x" * 1025)).error is ErrorCode.INVALID_GROUP_ID
        huge = (Supported("range", bytes(MEMBER_BYTES_MAX)),)
        assert (await w.join(protocols=huge)).error is ErrorCode.INVALID_REQUEST
        assert (await w.sync("m", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert await w.beat("m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await w.commit(topic="none") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await w.groups() == {}


# --- a group id belongs to one kind (G15) -----------------------------------------------------------------------------


async def test_the_id_of_a_consumer_group_is_refused_to_share_groups_and_the_other_way_round() -> None:
    async with world() as w:
        await w.stable(group="classic")
        refused = await w.member("m", "classic").heartbeat("t")
        assert refused.error is ErrorCode.GROUP_ID_NOT_FOUND

        await w.member("m", "share").heartbeat("t")
        assert (await w.join(group="share")).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await w.commit(group="share") is ErrorCode.GROUP_ID_NOT_FOUND
        assert await w.committed("share") is ErrorCode.GROUP_ID_NOT_FOUND
        assert await w.beat("m", 1, group="share") is ErrorCode.UNKNOWN_MEMBER_ID
        described = await w.admin.send(DescribeGroupRequest(group_id="share"))
        assert (described.error, described.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        assert {group: found[0] for group, found in (await w.groups()).items()} == {
            "classic": "classic",
            "share": "share",
        }


async def test_groups_are_listed_by_type_and_state() -> None:
    async with world() as w:
        await w.stable(group="one")
        await w.commit(group="simple")
        await w.member("m", "share").heartbeat("t")
        assert await w.groups(types=("Classic",)) == {
            "one": ("classic", "Stable", "consumer"),
            "simple": ("classic", "Empty", ""),
        }
        assert set(await w.groups(states=("empty",))) == {"simple"}
        assert set(await w.groups(types=("share", "classic"))) == {"one", "simple", "share"}


# --- offsets ----------------------------------------------------------------------------------------------------------


async def test_what_was_committed_is_fetched_and_survives_a_restart() -> None:
    async with world() as w:
        one = await w.stable()
        assert await w.commit(7, member_id=one, generation=1, metadata="später") is NONE
        await w.restart()
        answer = await w.admin.send(OffsetFetchRequest(group_id="g", partitions=(("t", 0), ("t", 1), ("no", 0))))
        found = [(one.topic, one.partition, one.offset, one.leader_epoch, one.metadata) for one in answer.partitions]
        assert found == [("t", 0, 7, 2, "später"), ("t", 1, -1, -1, ""), ("no", 0, -1, -1, "")]
        assert await w.committed() == {("t", 0): 7}
        assert await w.beat(one, 1) is NONE


async def test_a_group_nobody_knows_has_no_offsets() -> None:
    async with world() as w:
        assert await w.committed("none") == {}
        assert await w.committed("none", partitions=(("t", 1),)) == {("t", 1): -1}


async def test_offsets_are_confirmed_when_they_are_durable() -> None:
    async with world() as w:
        await w.commit(1)
        hold = asyncio.Event()
        w.storage.before_write = hold.wait
        waits = await parked(w.commit(2))
        assert await w.committed() == {("t", 0): 1}
        hold.set()
        assert await waits is NONE
        assert await w.committed() == {("t", 0): 2}
        w.storage.before_write = refuse
        assert await w.commit(3) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await w.committed() == {("t", 0): 2}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": "none"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 2}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"metadata": "x" * 4_097}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ({"metadata": "x" * 4_096}, ErrorCode.NONE),
        ({"generation": 3, "member_id": "m"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"generation": 3, "member_id": "m", "version": 8}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
async def test_a_simple_consumers_commit_is_checked(fields, error) -> None:
    async with world() as w:
        assert await w.commit(**fields) is error


async def test_offsets_of_a_topic_that_members_read_are_not_deleted() -> None:
    async with world() as w:
        await w.topic("u")
        one = await w.stable(topics=("t",))
        await w.commit(member_id=one, generation=1)
        await w.commit(topic="u", member_id=one, generation=1)
        wanted = (("t", 0), ("u", 0))
        answer = await w.admin.send(OffsetDeleteRequest(group_id="g", partitions=wanted))
        assert [part.error for part in answer.partitions] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE]
        assert await w.committed() == {("t", 0): 5}
        await w.leave(one)
        await w.admin.send(OffsetDeleteRequest(group_id="g", partitions=wanted))
        assert await w.committed() == {}
        missing = await w.admin.send(OffsetDeleteRequest(group_id="none", partitions=()))
        assert missing.error is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_transactions_offsets_count_when_it_is_committed_and_survive_a_restart_before() -> None:
    async with world() as w:
        await w.commit(1)
        producer = await w.begin()
        assert await w.txn_commit(9, producer) is NONE
        assert await w.committed(stable=True) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
        assert await w.committed() == {("t", 0): 1}
        await w.restart()
        assert await w.committed(stable=True) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
        assert await w.end(producer, committed=True) is NONE
        assert await w.committed(stable=True) == {("t", 0): 9}


async def test_a_transactions_offsets_never_were_when_it_is_aborted() -> None:
    async with world() as w:
        producer = await w.begin()
        await w.txn_commit(9, producer)
        assert await w.end(producer, committed=False) is NONE
        assert await w.committed(stable=True) == {}
        await w.restart()
        assert await w.committed(stable=True) == {}
        assert await w.txn_commit(9, producer) is not NONE


async def test_the_end_of_a_transaction_may_be_told_twice_and_to_groups_that_are_gone() -> None:
    async with world() as w:
        await w.commit(1)
        producer = await w.begin()
        await w.txn_commit(9, producer)
        for committed in (True, False):
            await w.server.classic.complete_transaction(["g", "none"], *producer, committed=committed)
        assert await w.committed(stable=True) == {("t", 0): 9}


@pytest.mark.parametrize("committed", [True, False])
async def test_an_offset_of_a_transaction_whose_write_failed_but_is_stored_goes_with_the_transaction(committed) -> None:
    async with world() as w:
        await w.commit(5)
        producer = await w.begin()
        w.storage.write = failing_late(w.storage)
        assert await w.txn_commit(50, producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        del w.storage.write
        assert await w.storage.scan(PENDING)

        assert await w.end(producer, committed=committed) is NONE

        assert not await w.storage.scan(PENDING)
        await w.restart()
        assert await w.committed(stable=True) == {("t", 0): 5}


async def test_a_group_whose_first_offset_is_in_doubt_is_there_until_its_transaction_is_over() -> None:
    async with world() as w:
        producer = await w.begin()
        w.storage.write = failing_late(w.storage)
        await w.txn_commit(50, producer)
        del w.storage.write

        assert await w.end(producer, committed=False) is NONE

        assert not await w.storage.scan(PENDING)


async def test_offsets_of_a_transaction_that_was_over_before_the_start_hold_nobody_up() -> None:
    async with world() as w:
        await w.commit(5)
        for group in ("g", "open"):
            producer = await w.begin(group)
            await w.txn_commit(50, producer, group=group)
            if group == "g":
                left = await w.storage.scan(PENDING)
                await w.end(producer, committed=False)
        await w.storage.write(left)
        w.storage.before_write = refuse
        await w.restart()
        assert await w.committed(stable=True) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
        w.storage.before_write = None

        await w.restart()

        assert await w.committed(stable=True) == {("t", 0): 5}
        assert await w.end(producer, committed=True) is NONE
        assert await w.committed("open", stable=True) == {("t", 0): 50}


async def test_offsets_of_a_transaction_stay_while_a_transactional_id_cannot_be_read() -> None:
    async with world() as w:
        producer = await w.begin()
        await w.txn_commit(50, producer)
        (stored,) = await w.storage.scan(PREFIX)
        await w.storage.write([(stored[0], b"nonsense")])
        await w.restart()
        assert await w.committed(stable=True, partitions=(("t", 0),)) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
        await w.storage.write([stored])

        await w.restart()

        assert await w.end(producer, committed=True) is NONE
        assert await w.committed(stable=True) == {("t", 0): 50}


def failing_at(number):
    """Fail the write of this number, and no other."""
    count = itertools.count(1)

    async def fail() -> None:
        if next(count) == number:
            await refuse()

    return fail


def failing_late(storage):
    """Write, and then say that it failed."""
    write = storage.write

    async def failing(writes) -> None:
        await write(writes)
        raise StorageError("injected")

    return failing


# --- deletion, expiry -------------------------------------------------------------------------------------------------


async def test_deleting_a_group_takes_its_offsets_and_needs_it_empty() -> None:
    async with world() as w:
        one = await w.stable()
        await w.commit(member_id=one, generation=1)
        assert await w.delete() is ErrorCode.NON_EMPTY_GROUP
        await w.leave(one)
        assert await w.delete() is NONE
        assert await w.delete() is ErrorCode.GROUP_ID_NOT_FOUND
        assert await w.committed() == {}
        await w.restart()
        assert await w.groups() == {}
        assert not await w.storage.scan(OFFSETS)


async def test_a_group_whose_deletion_cannot_be_written_is_still_there() -> None:
    async with world() as w:
        await w.commit()
        w.storage.before_write = refuse
        assert await w.delete() is not NONE
        w.storage.before_write = None
        assert await w.committed() == {("t", 0): 5}
        assert await w.commit(6) is NONE


async def test_scenario_20_a_deleted_topic_takes_its_offsets_at_once_and_begins_anew() -> None:
    async with world() as w:
        await w.topic("u")
        await w.commit(topic="u")
        await w.commit()
        await w.admin.send(DeleteTopicRequest(name="t"))
        assert await w.committed() == {("u", 0): 5}
        await w.topic("t")
        assert await w.committed(partitions=(("t", 0),)) == {("t", 0): -1}


async def test_a_topic_made_anew_begins_without_offsets_though_those_of_the_old_one_could_not_be_removed() -> None:
    async with world() as w:
        await w.commit(5)
        await w.commit(6, group="other")
        await w.topic("u")
        await w.commit(7, topic="u")
        producer = await w.begin()
        await w.txn_commit(9, producer)
        w.storage.before_write = failing_at(2)

        assert await w.delete_topic() is not NONE

        w.storage.before_write = None
        assert await w.committed() == {("u", 0): 7}
        assert [key for key, _ in await w.storage.scan(OFFSETS) if b"other" in key] == []
        await w.topic("t", 2)
        assert await w.end(producer, committed=True) is NONE
        assert await w.committed() == {("u", 0): 7}
        assert await w.committed(partitions=(("t", 0),), stable=True) == {("t", 0): -1}
        assert await w.commit(1) is NONE
        assert await w.committed(partitions=(("t", 0),)) == {("t", 0): 1}


async def test_a_topic_goes_with_its_offsets_though_its_deleter_gives_up() -> None:
    async with world() as w:
        await w.commit(5)
        goes_on = asyncio.Event()
        w.storage.before_write = goes_on.wait
        deleting = await parked(w.delete_topic())
        deleting.cancel()
        await settle()
        w.storage.before_write = None
        goes_on.set()
        await settle()
        assert not await w.storage.scan(OFFSETS)
        assert "t" not in w.storage.topics()


async def test_a_topic_made_anew_begins_without_offsets_while_those_of_the_old_one_wait_to_be_removed() -> None:
    async with world() as w:
        await w.commit(5)
        async with w.server.classic.entries["g"].lock:
            deleting = await parked(w.delete_topic())
            await w.topic("t", 2)
            assert await w.committed() == {}
        assert await deleting is NONE


async def test_offsets_of_a_topic_that_went_without_the_group_hearing_of_it_go_at_the_start() -> None:
    async with world() as w:
        await w.commit()
        await w.storage.delete_topic("t")
        await w.storage.create_topic("t")
        await w.restart()
        assert await w.committed() == {}


async def test_a_commit_that_waits_while_its_group_is_deleted_is_told_to_try_again() -> None:
    async with world() as w:
        await w.commit(1)
        hold = asyncio.Event()
        w.storage.before_write = hold.wait
        deletion = await parked(w.delete())
        waits = asyncio.ensure_future(w.commit(2))
        await settle()
        hold.set()
        assert await deletion is NONE
        assert await waits is NONE
        assert await w.committed() == {("t", 0): 2}


async def test_a_group_that_cannot_be_read_is_refused_and_goes_only_when_it_is_deleted() -> None:
    async with world() as w:
        await w.commit()
        ((key, value),) = await w.storage.scan(OFFSETS)
        await w.storage.write([(key, value[:-1] + b"?")])
        await w.restart()
        assert await w.committed() is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await w.commit() is ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await w.join()).error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await w.storage.scan(OFFSETS)
        assert await w.delete() is NONE
        assert await w.commit() is NONE


async def test_a_group_that_cannot_be_read_is_gone_though_its_deleter_gives_up() -> None:
    async with world() as w:
        await w.commit()
        ((key, value),) = await w.storage.scan(OFFSETS)
        await w.storage.write([(key, value[:-1] + b"?")])
        await w.restart()

        await given_up(w.storage, w.delete())

        assert await w.commit() is NONE


async def test_a_group_that_cannot_be_read_is_deleted_twice_at_once_and_a_new_one_is_not() -> None:
    async with world() as w:
        await w.commit()
        ((key, value),) = await w.storage.scan(OFFSETS)
        await w.storage.write([(key, value[:-1] + b"?")])
        await w.restart()
        scan, goes_on = w.storage.scan, asyncio.Event()

        async def slow(prefix):
            found = await scan(prefix)
            await goes_on.wait()
            return found

        w.storage.scan = slow
        deleting = await parked(w.delete())
        del w.storage.scan
        assert await w.delete() is NONE
        assert await w.commit(7) is NONE
        goes_on.set()
        assert await deleting is ErrorCode.GROUP_ID_NOT_FOUND
        await w.restart()
        assert await w.committed() == {("t", 0): 7}


async def test_a_stored_group_that_contradicts_itself_is_refused_and_the_others_are_served() -> None:
    async with world() as w:
        await w.stable()
        await w.commit(group="simple")
        ((key, value),) = await w.storage.scan(GROUPS)
        broken = replace(decode_group(value), protocol_name="sticky")
        await w.storage.write([(key, encode_group(broken))])
        await w.restart()
        assert (await w.join()).error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert await w.committed("simple") == {("t", 0): 5}


# --- settings ---------------------------------------------------------------------------------------------------------


async def test_settings_are_read_by_kafkas_names_and_checked() -> None:
    read = Settings.parse({"offsets.retention.minutes": "2", "group.initial.rebalance.delay.ms": "3000"}).classic
    assert (read.offsets_retention_ms, read.initial_rebalance_delay_ms) == (120_000, 3_000)
    assert Settings.parse({}).classic == ClassicConfig()
    assert len(CLASSIC_CONFIGS) == 8
    with pytest.raises(InvalidConfig, match="retention"):
        Settings.parse({"offsets.retention.minutes": "0"})
    with pytest.raises(InvalidConfig, match="must not exceed"):
        Settings.parse({"group.min.session.timeout.ms": "9000", "group.max.session.timeout.ms": "8000"})
    with pytest.raises(InvalidConfig):
        Settings.parse({"offsets.retention.minute": "1"})


async def test_members_are_not_removed_before_their_requests_are_read_by_a_process_that_stood_still() -> None:
    async with world() as w:
        one = await w.stable()
        w.clock._elapsed_s += 14  # longer than the session timeout, and nothing runs meanwhile
        await w.clock.advance(0.001)
        assert await w.beat(one, 1) is NONE
        w.clock._elapsed_s += 14
        await w.clock.advance(PUT_OFF_MS / 1000 + 0.1)
        assert await w.beat(one, 1) is ErrorCode.UNKNOWN_MEMBER_ID
