"""The judge of outputs on topics made by hand: right ones, and one for each thing that may be wrong."""

from __future__ import annotations

from tests.chaos.journal import NO_KEY
from tests.chaos.once_judge import OnceVerdict, Output, Placed, Planned, judge_outputs

REJECTED, RETRIED = 9, 5
"""Of ten records this one is planned for the dead letters, and of that one the first attempt fails."""
PLANNED = Planned(10, lambda number: number == REJECTED, lambda number, attempt: number == RETRIED and attempt == 1)
ACCEPTED = [number for number in range(10) if number != REJECTED]


class Lying:
    """Records in two output topics and in the dead letters; all correct at first."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Placed]] = {"returned": [], "sent": []}
        self.letters = [REJECTED]
        for topic in self.topics:
            for number in ACCEPTED:
                self.put(topic, number)

    def put(self, topic: str, number: int, *, attempt: int | None = None, key: int = 1, partition: int = 0) -> Lying:
        """One output more, behind the others; records lie in the order of their ids."""
        placed = self.topics[topic]
        right = 2 if number == RETRIED else 1
        output = Output(number, right if attempt is None else attempt, 0, number, key)
        placed.append(Placed(partition, len(placed), output))
        return self

    def without(self, topic: str, number: int) -> Lying:
        """All outputs of a record away from a topic."""
        self.topics[topic] = [one for one in self.topics[topic] if one.output.number != number]
        return self

    def judged(self, *, ordered: bool = True) -> OnceVerdict:
        """By the judge."""
        return judge_outputs(self.topics, self.letters, PLANNED, ordered=ordered)


def wrong(verdict: OnceVerdict) -> dict[str, int]:
    """Return the kinds of violations that were found, each with its count."""
    return {name: len(getattr(verdict, name)) for name in OnceVerdict.NAMES if getattr(verdict, name)}


def test_each_output_of_an_accepted_record_and_each_letter_of_a_rejected_one_once_is_right():
    verdict = Lying().judged()

    assert wrong(verdict) == {}
    assert verdict.violations == 0


def test_an_output_is_read_as_it_was_written():
    output = Output(17, 3, 2, 1_234, NO_KEY)

    assert output.encode().startswith(b"0000000017 ")
    assert Output.decode(output.encode()) == output


def test_an_accepted_record_without_an_output_in_one_of_the_topics_is_lost():
    assert wrong(Lying().without("sent", 3).judged()) == {"lost": 1}


def test_an_accepted_record_without_any_output_is_lost_in_each_topic():
    assert wrong(Lying().without("sent", 3).without("returned", 3).judged()) == {"lost": 2}


def test_a_second_output_in_a_topic_is_one_twice_and_a_third_another():
    lying = Lying().put("sent", 3)

    assert wrong(lying.judged()) == {"twice": 1}
    assert wrong(lying.put("sent", 3, attempt=4).judged()) == {"twice": 2}


def test_a_second_output_in_another_partition_is_one_twice():
    assert wrong(Lying().put("returned", 3, partition=2).judged()) == {"twice": 1}


def test_a_rejected_record_without_a_letter_is_lost_and_with_two_it_is_twice():
    lying = Lying()

    lying.letters = []
    assert wrong(lying.judged()) == {"lost": 1}
    lying.letters = [REJECTED, REJECTED]
    assert wrong(lying.judged()) == {"letters_twice": 1}


def test_a_letter_of_an_accepted_record_or_of_none_is_of_no_accept():
    lying = Lying()

    lying.letters += [3, 10, -1]

    assert wrong(lying.judged()) == {"of_no_accept": 3}


def test_an_output_of_a_rejected_record_or_of_none_is_of_no_accept():
    assert wrong(Lying().put("sent", REJECTED).put("returned", 10).judged()) == {"of_no_accept": 2}


def test_an_output_of_an_attempt_that_failed_is_of_no_accept_beside_the_right_one():
    assert wrong(Lying().put("sent", RETRIED, attempt=1).judged()) == {"of_no_accept": 1}


def test_an_output_of_an_attempt_that_failed_does_not_stand_for_the_right_one():
    lying = Lying().without("sent", RETRIED).put("sent", RETRIED, attempt=1)

    assert wrong(lying.judged(ordered=False)) == {"of_no_accept": 1, "lost": 1}


def test_outputs_of_one_record_that_are_of_different_attempts_cannot_all_be_of_its_accept():
    lying = Lying().without("sent", 3).put("sent", 3, attempt=2)

    assert wrong(lying.judged(ordered=False)) == {"of_no_accept": 1}


def test_outputs_of_an_attempt_that_both_topics_have_are_no_tear_beside_those_of_another():
    lying = Lying().put("sent", 3, attempt=2).put("returned", 3, attempt=2)

    assert wrong(lying.judged()) == {"twice": 2}


def test_an_output_of_a_key_behind_one_of_a_later_record_is_an_inversion():
    lying = Lying().without("sent", 3).put("sent", 3)

    assert wrong(lying.judged()) == {"inversions": 1}
    assert wrong(lying.judged(ordered=False)) == {}


def test_outputs_of_different_keys_or_without_one_or_in_different_partitions_have_no_order():
    for key, partition in ((2, 0), (NO_KEY, 0), (1, 3)):
        lying = Lying().without("sent", 3).put("sent", 3, key=key, partition=partition)

        assert wrong(lying.judged()) == {}


def test_an_output_that_comes_again_late_is_twice_and_no_inversion():
    assert wrong(Lying().put("sent", 0).judged()) == {"twice": 1}


def test_the_line_says_how_many_there_are_of_each():
    assert str(Lying().put("sent", 3).judged()) == "lost 0  twice 1  letters twice 0  of no accept 0  inversions 0"
