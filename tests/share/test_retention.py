"""When the state of a group without members expires."""

from __future__ import annotations

from flowshare.share.config import GroupConfig
from flowshare.share.group import ShareGroup
from flowshare.share.group_state import GroupState


def group(empty_since_ms: int | None, retention_ms: int | None) -> ShareGroup:
    config = GroupConfig(retention_ms=retention_ms)
    return ShareGroup("g", config=config, state=GroupState(empty_since_ms=empty_since_ms))


def test_by_default_a_group_never_expires():
    assert group(1_000, None).expires_ms is None


def test_a_group_with_members_does_not_expire():
    assert group(None, 0).expires_ms is None


def test_the_time_runs_from_when_the_last_member_went():
    assert group(1_000, 500).expires_ms == 1_500
