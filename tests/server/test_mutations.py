"""The quota of partitions that a party makes and removes (KIP-599)."""

from __future__ import annotations

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.server.records import mutations
from flowshare.server.records.mutations import MutationQuota, Throttled


def throttled(quota: MutationQuota, party: str, now_s: float) -> int:
    """Milliseconds after which the party may make something again."""
    with pytest.raises(Throttled) as refused:
        quota.take(party, 1, now_s)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    return refused.value.throttle_ms


def test_the_window_s_worth_is_had_at_once_and_then_the_rate():
    quota = MutationQuota(10, 5)
    quota.take("a", 50, 0.0)
    quota.take("a", 1, 0.0)  # the bucket is empty, not in debt: as in Kafka one more is let through
    assert throttled(quota, "a", 0.0) == 100
    quota.take("a", 1, 0.1)
    assert throttled(quota, "a", 0.1) == 100


def test_a_topic_may_take_more_than_there_is_and_the_debt_is_waited_for():
    quota = MutationQuota(10, 5)
    quota.take("a", 150, 0.0)
    assert throttled(quota, "a", 0.0) == 10_000
    assert throttled(quota, "a", 9.0) == 1_000
    quota.take("a", 1, 10.0)


def test_a_refusal_takes_nothing_and_says_which_setting_it_is():
    quota = MutationQuota(10, 1)
    quota.take("a", 20, 0.0)
    for _ in range(5):
        with pytest.raises(Throttled, match=r"controller_mutation_rate.*try again in 1 s"):
            quota.take("a", 100, 0.0)
    quota.take("a", 1, 1.0)


def test_whoever_makes_too_many_takes_nothing_from_others_nor_from_the_server_itself():
    quota = MutationQuota(10, 5)
    quota.take("a", 1_000, 0.0)
    quota.take("b", 50, 0.0)
    for _ in range(3):
        quota.take(None, 1_000, 0.0)


def test_a_bucket_holds_no_more_than_the_window_s_worth_however_long_nothing_is_made():
    quota = MutationQuota(10, 5)
    quota.take("a", 1, 0.0)
    quota.take("a", 60, 1e6)
    assert throttled(quota, "a", 1e6) == 1_000


def test_unlimited_is_unlimited():
    quota = MutationQuota(None, 5)
    for _ in range(3):
        quota.take("a", 10**9, 0.0)
    assert not quota._buckets


def test_few_parties_are_remembered_and_who_is_in_debt_before_all_others(monkeypatch):
    monkeypatch.setattr(mutations, "BUCKETS_MAX", 20)
    quota = MutationQuota(10, 5)
    quota.take("debtor", 1_000, 0.0)
    for number in range(200):
        quota.take(f"p{number}", 1, 0.0)
        assert len(quota._buckets) <= 20
    assert throttled(quota, "debtor", 0.0)
    for number in range(20):  # all others have full buckets by now, and need not be remembered
        quota.take(f"q{number}", 1, 10.0)
    assert throttled(quota, "debtor", 10.0)
