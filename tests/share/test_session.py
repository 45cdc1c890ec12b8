"""Share sessions: the scenarios S01 to S25 as far as they need no records."""

from __future__ import annotations

from uuid import UUID

import pytest

from flowshare.core_errors import (
    InvalidRequest,
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)
from flowshare.share.session import EPOCH_LAST, PARTITIONS_MAX, ShareSessions, check_ids, next_epoch, rotated

TOPIC = UUID(int=1)
TP0, TP1, TP2 = ((TOPIC, partition) for partition in range(3))


def opened(*keys, sessions_max=10, connection="c1", member="m1"):
    sessions = ShareSessions(sessions_max)
    sessions.fetch(connection, "g", member, 0, added=keys)
    return sessions


def test_s01_epochs_follow_each_other():
    sessions = opened(TP0)

    for epoch in (1, 2, 3):
        assert sessions.fetch("c1", "g", "m1", epoch).partitions == (TP0,)


def test_s02_s03_a_skipped_epoch_is_refused():
    sessions = opened(TP0)

    with pytest.raises(InvalidShareSessionEpoch):
        sessions.fetch("c1", "g", "m1", 2)
    with pytest.raises(InvalidShareSessionEpoch):
        sessions.acknowledge("g", "m1", 2)
    assert sessions.fetch("c1", "g", "m1", 1)


@pytest.mark.parametrize("epoch", [5, -1, -2])
def test_s04_s05_without_a_session_only_epoch_0_is_accepted(epoch):
    sessions = ShareSessions()

    with pytest.raises(ShareSessionNotFound):
        sessions.fetch("c1", "g", "m1", epoch)
    with pytest.raises(ShareSessionNotFound):
        sessions.acknowledge("g", "m1", epoch)


def test_s06_acknowledgements_at_epoch_0_are_refused_and_the_session_survives():
    sessions = opened(TP0)
    sessions.fetch("c1", "g", "m1", 1)

    with pytest.raises(InvalidRequest):
        sessions.fetch("c1", "g", "m1", 0, added=[TP1], has_acks=True)

    assert sessions.fetch("c1", "g", "m1", 2).partitions == (TP0,)


def test_s07_an_acknowledge_never_opens_a_session():
    sessions = opened(TP0)

    with pytest.raises(InvalidShareSessionEpoch):
        sessions.acknowledge("g", "m1", 0)
    with pytest.raises(InvalidShareSessionEpoch):
        ShareSessions().acknowledge("g", "m1", 0)


def test_s08_fetch_and_acknowledge_share_one_counter():
    sessions = opened(TP0)

    sessions.fetch("c1", "g", "m1", 1)
    assert sessions.acknowledge("g", "m1", 2) is None
    sessions.fetch("c1", "g", "m1", 3)


def test_s09_a_repeated_epoch_is_refused():
    sessions = opened(TP0)
    sessions.fetch("c1", "g", "m1", 1)

    with pytest.raises(InvalidShareSessionEpoch):
        sessions.fetch("c1", "g", "m1", 1)


def test_s10_epoch_0_replaces_the_session_even_if_the_cache_is_full():
    sessions = opened(TP0, sessions_max=1)
    sessions.fetch("c1", "g", "m1", 1)

    turn = sessions.fetch("c1", "g", "m1", 0, added=[TP1])

    assert turn.partitions == (TP1,)
    assert turn.closed is None
    assert len(sessions) == 1
    assert sessions.fetch("c1", "g", "m1", 1).partitions == (TP1,)


def test_a_session_reopened_over_a_second_connection_survives_the_close_of_the_first():
    sessions = opened(TP0, connection="c1")
    sessions.fetch("c2", "g", "m1", 0, added=[TP0])

    assert sessions.close_connection("c1") == ()
    assert sessions.fetch("c2", "g", "m1", 1)
    assert [closed.member_id for closed in sessions.close_connection("c2")] == ["m1"]


def test_s11_a_fetch_that_closes_fetches_nothing_and_gives_back_what_the_session_held():
    sessions = opened(TP0, TP1)

    turn = sessions.fetch("c1", "g", "m1", -1, added=[TP2], has_acks=True)

    assert turn.partitions == ()
    assert turn.closed is not None
    assert turn.closed.partitions == (TP0, TP1)
    with pytest.raises(ShareSessionNotFound):
        sessions.fetch("c1", "g", "m1", 1)


def test_s12_s13_an_acknowledge_that_closes_gives_back_what_the_session_held():
    sessions = opened(TP0)

    closed = sessions.acknowledge("g", "m1", -1)

    assert closed is not None
    assert (closed.group_id, closed.member_id, closed.partitions) == ("g", "m1", (TP0,))


def test_s14_a_closed_connection_ends_the_sessions_it_opened_and_no_others():
    sessions = opened(TP0, connection="c1", member="m1")
    sessions.fetch("c1", "g", "m2", 0, added=[TP1])
    sessions.fetch("c2", "g", "m3", 0, added=[TP2])

    closed = sessions.close_connection("c1")

    assert [(c.member_id, c.partitions) for c in closed] == [("m1", (TP0,)), ("m2", (TP1,))]
    assert sessions.has("g")
    assert sessions.close_connection("c1") == ()
    assert sessions.close_connection("unknown") == ()
    assert sessions.fetch("c2", "g", "m3", 1)


def test_acknowledgements_are_taken_over_any_connection():
    sessions = opened(TP0, connection="c1")

    sessions.fetch("c2", "g", "m1", 1)

    assert sessions.close_connection("c2") == ()
    assert len(sessions.close_connection("c1")) == 1


def test_s15_a_session_beyond_the_cap_waits_until_another_ends():
    sessions = opened(TP0, sessions_max=2, connection="c1")
    sessions.fetch("c2", "g", "m2", 0, added=[TP0])

    with pytest.raises(ShareSessionLimitReached, match=r"group\.share\.max\.share\.sessions"):
        sessions.fetch("c3", "g", "m3", 0, added=[TP0])

    sessions.close_connection("c1")
    assert sessions.fetch("c3", "g", "m3", 0, added=[TP0]).partitions == (TP0,)


def test_s17_a_forgotten_partition_is_not_fetched_any_more():
    sessions = opened(TP0, TP1)

    assert sessions.fetch("c1", "g", "m1", 1, forgotten=[TP0]).partitions == (TP1,)


def test_s18_a_session_without_partitions_lives_on():
    sessions = opened(TP0, TP1)

    assert sessions.fetch("c1", "g", "m1", 1, forgotten=[TP0, TP1, TP2]).partitions == ()
    assert sessions.fetch("c1", "g", "m1", 2, added=[TP1]).partitions == (TP1,)


def test_a_session_has_a_bound_on_its_partitions_and_is_left_as_it_is_beyond():
    sessions = ShareSessions()
    first = [(UUID(int=1), number) for number in range(PARTITIONS_MAX)]
    one_more = [(UUID(int=2), 0)]
    with pytest.raises(InvalidRequest, match="at most 10000 partitions"):
        sessions.fetch("c", "g", "m", 0, added=[*first, *one_more])
    assert len(sessions) == 0
    sessions.fetch("c", "g", "m", 0, added=first)
    with pytest.raises(InvalidRequest, match="at most 10000 partitions"):
        sessions.fetch("c", "g", "m", 1, added=one_more)
    turn = sessions.fetch("c", "g", "m", 1, added=first, forgotten=first[:1])
    assert len(turn.partitions) == PARTITIONS_MAX - 1
    assert one_more[0] in sessions.fetch("c", "g", "m", 2, added=one_more).partitions


def test_s19_an_added_partition_is_listed_once():
    sessions = opened(TP0)
    session = sessions.fetch("c1", "g", "m1", 1).session
    session.must_list(TP0, content=False, error=False)
    sessions.fetch("c1", "g", "m1", 2, added=[TP1, TP0])

    first = [session.must_list(key, content=False, error=False) for key in (TP0, TP1)]
    second = [session.must_list(key, content=False, error=False) for key in (TP0, TP1)]

    assert first == [False, True]
    assert second == [False, False]


def test_s20_a_partition_is_listed_once_more_after_an_error():
    sessions = opened(TP0)
    session = sessions.get("g", "m1")
    assert session is not None

    listed = [session.must_list(TP0, content=False, error=error) for error in (False, True, False, False)]

    assert listed == [True, True, True, False]


def test_content_is_always_listed_even_of_a_partition_that_is_not_in_the_session():
    session = opened(TP0).get("g", "m1")
    assert session is not None
    session.must_list(TP0, content=True, error=False)

    assert session.must_list(TP0, content=True, error=False)
    assert session.must_list(TP1, content=True, error=False)
    assert not session.must_list(TP1, content=False, error=False)


def test_s21_a_partition_forgotten_earlier_is_not_given_back():
    sessions = opened(TP0, TP1)
    sessions.fetch("c1", "g", "m1", 1, forgotten=[TP0])

    closed = sessions.acknowledge("g", "m1", -1)

    assert closed is not None
    assert closed.partitions == (TP1,)


def test_s22_the_order_rotates_with_the_epoch():
    keys = tuple((TOPIC, partition) for partition in range(7))

    firsts = [rotated(keys, epoch)[0][1] for epoch in (0, 1, 3, 12, 2**31 - 1)]

    assert firsts == [0, 1, 3, 5, 1]
    assert rotated(keys, 3) == keys[3:] + keys[:3]
    assert rotated((), 3) == ()
    sessions = opened(*keys)
    assert sessions.fetch("c1", "g", "m1", 1).partitions[0] == keys[1]


def test_s23_after_the_last_epoch_comes_1():
    sessions = opened(TP0)
    session = sessions.get("g", "m1")
    assert session is not None
    session.expected_epoch = EPOCH_LAST

    sessions.fetch("c1", "g", "m1", EPOCH_LAST)

    assert session.expected_epoch == 1
    assert next_epoch(EPOCH_LAST) == 1
    assert sessions.acknowledge("g", "m1", 1) is None


def test_s24_sessions_of_two_groups_are_independent():
    sessions = opened(TP0)
    sessions.fetch("c1", "other", "m1", 0, added=[TP1])
    sessions.fetch("c1", "g", "m1", 1)

    assert sessions.fetch("c1", "other", "m1", 1).partitions == (TP1,)


def test_s25_a_group_has_no_session_when_the_last_one_is_closed():
    sessions = opened(TP0, member="m1")
    sessions.fetch("c1", "g", "m2", 0, added=[TP0])

    assert sessions.close("g", "m1") is not None
    assert sessions.has("g")
    assert sessions.close("g", "m2") is not None
    assert not sessions.has("g")
    assert sessions.close("g", "m2") is None


@pytest.mark.parametrize(("group", "member"), [(None, "m"), ("", "m"), ("g", None), ("g", ""), ("g", "x" * 37)])
def test_v02_missing_or_long_ids_are_refused(group, member):
    sessions = ShareSessions()

    with pytest.raises(InvalidRequest):
        sessions.fetch("c1", group, member, 0)
    with pytest.raises(InvalidRequest):
        sessions.acknowledge(group, member, 1)
    assert check_ids("g", "x" * 36) == ("g", "x" * 36)


def test_a_refused_request_changes_nothing():
    sessions = opened(TP0)

    with pytest.raises(InvalidShareSessionEpoch):
        sessions.fetch("c1", "g", "m1", 7, added=[TP1], forgotten=[TP0])

    assert sessions.fetch("c1", "g", "m1", 1).partitions == (TP0,)


def test_one_connection_opens_only_some_of_all_sessions():
    sessions = ShareSessions(100, connection_sessions_max=2)
    for number in range(2):
        sessions.fetch("c1", "g", f"m{number}", 0, party="User:a")

    with pytest.raises(ShareSessionLimitReached, match=r"connection\.max\.share\.sessions"):
        sessions.fetch("c1", "g", "m2", 0, party="User:a")
    sessions.fetch("c1", "g", "m1", 0, party="User:a")  # in the place of its own
    sessions.fetch("c2", "g", "m2", 0, party="User:a")


def test_one_party_leaves_sessions_to_others():
    sessions = ShareSessions(100)
    for number in range(90):
        sessions.fetch(f"c{number}", "g", f"m{number}", 0, party="User:a")

    with pytest.raises(ShareSessionLimitReached, match=r"User:a has 90 .*group\.share\.max\.share\.sessions"):
        sessions.fetch("c", "g", "m", 0, party="User:a")
    sessions.fetch("c90", "g", "m90", 0, party="User:b")
    sessions.close_connection("c1")
    sessions.fetch("c", "g", "m", 0, party="User:a")


def test_the_servers_own_process_may_have_all_sessions():
    sessions = ShareSessions(5, connection_sessions_max=1)
    for number in range(5):
        sessions.fetch("c", "g", f"m{number}", 0)
    assert len(sessions) == 5
