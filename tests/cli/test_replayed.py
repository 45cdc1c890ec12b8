"""What is remembered of replayed letters, as text, and whatever interrupts; what is deleted of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from flowshare.cli.replay import METADATA_MAX, Replay, format_runs, parse, whole
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
