"""Sessions of the fuzzer: those it begins with get through, and what is made of them ends in order."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode as KafkaError

from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.translation import NO_TIME
from tests.fuzz.pipe import run
from tests.fuzz.samples import TOPIC_ID
from tests.fuzz.seeds import Said, encoded, outcome, seeds
from tests.fuzz.sessions import Accepted, Played, Step, mutated, play, steps
from tests.fuzz.speaker import Request

SEEDS = seeds()


def played(data: bytes) -> list[Played]:
    """Play a sequence on a server of its own, and return the results of its steps."""
    found: list[Played] = []

    async def work(target):
        found.extend(await play(target, data))

    run(work)
    return found


def last(name: str, api: str):
    """The last answer of an API in a seed."""
    return [one.answer for one in played(encoded(SEEDS[name])) if type(one.answer).__name__ == f"{api}Response"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("said", SEEDS.values(), ids=SEEDS)
def test_every_step_of_a_seed_has_the_outcome_it_says(said: list[Said]):
    answers = {one.step: outcome(one.answer) for one in played(encoded(said))}
    assert [answers.get(number) for number in range(len(said))] == [one.outcome for one in said]


@pytest.mark.slow
def test_records_that_a_seed_acknowledges_are_done_with():
    (group,) = last("records accepted", "DescribeShareGroupOffsets").groups
    starts = {one.partition_index: one.start_offset for topic in group.topics for one in topic.partitions}
    assert starts[0] == 2, "both records of the one batch"


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "committed"), [("committed", 2), ("aborted", -1)])
def test_the_transaction_of_a_seed_is_over_with_its_offsets(ending, committed):
    (group,) = last(f"a transaction {ending}", "OffsetFetch").groups
    assert {one.committed_offset for topic in group.topics for one in topic.partitions} == {committed, -1}
    fetched = last(f"a transaction {ending}", "Fetch").responses[0].partitions[0]
    assert fetched.last_stable_offset == fetched.high_watermark == 5, "two batches of two and the marker"
    assert bool(fetched.aborted_transactions) == (ending == "aborted")


@pytest.mark.slow
def test_a_member_of_a_seed_gets_records_when_their_transaction_is_committed_only():
    name = "records seen when their transaction is committed only"
    fetches = [one.answer for one in played(encoded(SEEDS[name])) if "ShareFetch" in type(one.answer).__name__]
    acquired = [
        sum(
            one.last_offset - one.first_offset + 1
            for topic in answer.responses
            for part in topic.partitions
            for one in part.acquired_records
        )
        for answer in fetches
    ]
    assert acquired == [0, 0, 4] or acquired == [0, 0, 5], "the marker takes an offset"


@pytest.mark.slow
def test_the_same_bytes_say_the_same():
    rng = random.Random(1)
    for _ in range(10):
        data = mutated(encoded(rng.choice(list(SEEDS.values()))), rng)
        first, second = ([(one.step, outcome(one.answer)) for one in played(data)] for _ in range(2))
        assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_whatever_becomes_of_a_session_ends_in_order(seed):
    rng = random.Random(seed)
    for _ in range(10):
        data = encoded(rng.choice(list(SEEDS.values())))
        for _ in range(rng.choice((1, 2, 4, 8))):
            data = mutated(data, rng)
        played(data)


def test_bytes_are_steps_of_eight_and_the_rest_says_nothing():
    assert steps(bytes(range(20))) == [Step(*range(8)), Step(*range(8, 16))]
    assert steps(b"") == []


def test_a_record_that_comes_again_when_its_acceptance_was_answered_is_found():
    batch = SimpleNamespace(first_offset=0, last_offset=1, acknowledge_types=(1, 2))
    part = SimpleNamespace(partition_index=0, acknowledgement_batches=[batch])
    topics = [SimpleNamespace(topic_id=TOPIC_ID, partitions=[part])]
    request = Request(ApiKey.SHARE_FETCH, {"group_id": "g", "topics": topics})
    made = module("share_fetch", 2, "response")

    def answer(first: int):
        part = made.PartitionData(
            partition_index=0,
            error_code=KafkaError.none,
            acknowledge_error_code=0,
            current_leader=made.LeaderIdAndEpoch(leader_id=0, leader_epoch=0),
            records=b"",
            acquired_records=(made.AcquiredRecords(first_offset=first, last_offset=1, delivery_count=1),),
        )
        topic = made.ShareFetchableTopicResponse(topic_id=TOPIC_ID, partitions=(part,))
        return made.ShareFetchResponse(
            throttle_time=NO_TIME,
            error_code=KafkaError.none,
            acquisition_lock_timeout=NO_TIME,
            responses=(topic,),
            node_endpoints=(),
        )

    accepted = Accepted()
    accepted.see([(request, answer(0))])
    accepted.see([(request, answer(1))])
    with pytest.raises(AssertionError, match="acquired again"):
        accepted.see([(request, answer(0))])
    accepted.doubtful = True
    accepted.see([(request, answer(0))])


def test_codes_of_an_answer_are_those_of_its_parts():
    assert outcome(b"a bare token") == {KafkaError.none}
    assert outcome(None) is None
