"""An agent's two members are asked as one; what one of them refuses keeps nothing from the other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flowshare.agents.feed.members import RETRY_RECORDS_MAX, MemberPair
from flowshare.client.errors import ServerError
from flowshare.client.session.share_session import Plan
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AcquireMode

MAIN = ServerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, about="orders")
RETRY = ServerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, about="the retry topic")


@pytest.mark.parametrize(
    ("main", "retry", "raised"), [(None, None, None), (MAIN, None, MAIN), (None, RETRY, RETRY), (MAIN, RETRY, MAIN)]
)
def test_both_members_are_asked_and_the_refusal_of_the_agents_own_topics_is_told_first(main, retry, raised):
    asked = []

    def member(refusal):
        def ask(plan):
            asked.append(plan.records_max)
            if refusal is not None:
                raise refusal

        return SimpleNamespace(ask=ask)

    pair = MemberPair.__new__(MemberPair)
    pair._main, pair._retry = member(main), member(retry)
    told = None
    try:
        pair.ask(Plan(500, 500, 0.5, 1 << 20, AcquireMode.BATCH_OPTIMIZED))
    except ServerError as error:
        told = error

    assert told is raised
    assert asked == [500, RETRY_RECORDS_MAX]
