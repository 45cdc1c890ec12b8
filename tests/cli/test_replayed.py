"""Tests of the memory of replayed letters: its text, interruptions, and deletions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from flowshare.client.errors import ServerError
from flowshare.ops.letters import NOT_COPIED, SERVER_PREFIX, letter_of
from flowshare.ops.replay import METADATA_MAX, ParkedLookup, Replay, format_runs, parse, whole
from flowshare.protocol.errors import ErrorCode
from flowshare.share.ranges import merged


@pytest.mark.parametrize("runs", [[], [(0, 5)], [(3, 3), (7, 19)]])
def test_runs_come_back_from_their_text(runs):
    assert parse(format_runs(runs)) == runs


def test_what_somebody_else_wrote_is_nothing():
    assert parse("offsets of mine, 7, x-9") == []


def test_of_too_many_runs_the_newest_are_kept():
    runs = [(2 * number, 2 * number) for number in range(10_000)]
    kept = parse(format_runs(runs))

    assert len(format_runs(runs)) <= METADATA_MAX
    assert kept == runs[-len(kept) :]


def test_neighbours_become_one_run():
    assert merged([(5, 6), (0, 1), (2, 2), (9, 9), (6, 7)]) == [(0, 2), (5, 7), (9, 9)]


# --- interrupted, and deleted ---------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_is_being_sent_is_remembered_though_the_command_is_interrupted() -> None:
    seen: list[str] = []
    goes_on = asyncio.Event()

    async def send_and_remember() -> None:
        seen.append("sent")
        await goes_on.wait()
        seen.append("remembered")

    command = asyncio.create_task(whole(send_and_remember()))
    await asyncio.sleep(0)
    command.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await command

    assert seen == ["sent", "remembered"]


def test_a_letter_of_the_servers_without_the_record_is_not_replayed_as_an_empty_one() -> None:
    headers = ((f"{SERVER_PREFIX}topic", b"t"), (f"{SERVER_PREFIX}partition", b"0"), (f"{SERVER_PREFIX}offset", b"7"))
    bare = SimpleNamespace(offset=0, key=None, value=None, timestamp_ms=1, headers=headers)
    copied = SimpleNamespace(offset=0, key=b"k", value=None, timestamp_ms=1, headers=headers)

    assert letter_of("g.dlq", 0, bare)["left_out"] == NOT_COPIED
    assert letter_of("g.dlq", 0, copied)["left_out"] == ""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.GROUP_ID_NOT_FOUND, None),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "parked keys of group g: COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "parked keys of group g: GROUP_AUTHORIZATION_FAILED"),
    ],
)
async def test_letters_are_not_taken_for_loose_ones_when_the_group_cannot_be_asked(code, told) -> None:
    async def parked_keys(group: str) -> None:
        raise ServerError(code, about=f"parked keys of group {group}")

    letter = {"group": "g", "topic": "t", "partition": "0", "offset": "0", "raw_key": b"a", "headers": ()}
    asked = ParkedLookup(SimpleNamespace(parked_keys=parked_keys)).of(letter)
    if told is None:
        assert await asked is None
    else:
        with pytest.raises(ServerError, match=told):
            await asked


@pytest.mark.asyncio
async def test_letters_are_deleted_up_to_the_first_one_of_a_parked_key() -> None:
    deleted: list[tuple[str, int, int]] = []

    async def delete_records(topic: str, partition: int, before: int) -> None:
        deleted.append((topic, partition, before))

    job = Replay(
        SimpleNamespace(admin=SimpleNamespace(delete_records=delete_records)),  # type: ignore[arg-type]
        "g.dlq",
        None,
        dry_run=False,
        again=False,
    )
    job._last, job.kept = {0: 9, 1: 3}, {0: 5, 1: 7}
    await job.delete()

    assert deleted == [("g.dlq", 0, 5), ("g.dlq", 1, 4)]
