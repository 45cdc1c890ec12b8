"""When the state of a group without members expires."""

from __future__ import annotations

from flowshare.share.retention import IdleGroup, expired, expires_ms, next_expiry_ms


def test_by_default_a_group_never_expires():
    assert expires_ms(IdleGroup("g", 1_000, None)) is None


def test_a_group_with_members_does_not_expire():
    assert expires_ms(IdleGroup("g", None, 0)) is None


def test_the_time_runs_from_when_the_last_member_went():
    group = IdleGroup("g", 1_000, 500)

    assert expired([group], 1_499) == ()
    assert expired([group], 1_500) == ("g",)


def test_the_next_expiry_is_the_earliest_of_all_groups():
    groups = [IdleGroup("a", 1_000, 500), IdleGroup("b", None, 5), IdleGroup("c", 900, 300), IdleGroup("d", 5, None)]

    assert next_expiry_ms(groups) == 1_200
    assert next_expiry_ms(groups[1:2]) is None
    assert next_expiry_ms([]) is None
