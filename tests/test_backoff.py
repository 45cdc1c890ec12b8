import pytest

from flowshare.backoff import Backoff


def test_pauses_double_up_to_the_longest_however_long_it_goes_on():
    pauses = [Backoff(0.5, 3.0).after(failures) for failures in (0, 1, 2, 3, 4, 10_000)]

    assert pauses == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_pauses_that_grow_slowly_reach_the_longest_too():
    assert Backoff(1.0, 60.0, factor=1.01).after(1_000) == 60.0


@pytest.mark.parametrize("failures", [1, 2, 10_000])
def test_no_pause_stays_none(failures):
    assert Backoff(0.0, 60.0).after(failures) == 0.0


def test_jitter_takes_off_no_more_than_its_part():
    backoff = Backoff(1.0, 60.0, jitter=0.3)

    assert [backoff.after(1, random) for random in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.85, 0.7])


@pytest.mark.parametrize("wrong", [{"first": -1.0}, {"most": -1.0}, {"factor": 0.5}, {"jitter": 1.5}])
def test_pauses_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="0 or more"):
        Backoff(**wrong)
