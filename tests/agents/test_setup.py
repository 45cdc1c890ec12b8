"""An agent's start when who is asked for its group's settings cannot do it now, or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from flowshare.agents.feed.setup import PREPARE_PAUSE_S, PREPARE_TRIES, prepare, rehearse
from flowshare.agents.handler.errors import UsageError
from flowshare.backend.base import MEMORY, BackendError
from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import ConfigEntry
from flowshare.testing import ManualClock
from tests.agents.agents_kit import one_agent

pytestmark = pytest.mark.asyncio


class Admin:
    """All topics are there; settings are refused so many times."""

    def __init__(self, code: ErrorCode, times: int, message: str = "the words of the server") -> None:
        self.code = code
        self.message = message
        self.left = times
        self.asked = 0

    async def describe_topic(self, name: str) -> None:
        """It is there."""

    async def list_groups(self) -> list[Any]:
        return []

    async def group_configs(self, group_id: str) -> list[ConfigEntry]:
        raise ServerError(self.code, about="settings")

    async def describe_group(self, group_id: str) -> Any:
        raise ServerError(self.code, about="group")

    async def alter_group_configs(
        self, group_id: str, configs: Mapping[str, str | None], *, dry_run: bool = False
    ) -> None:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise ServerError(self.code, self.message, about="settings")


async def handler(value: bytes) -> None:
    """Does nothing."""


def starting(admin: Any, clock: ManualClock) -> asyncio.Future[Any]:
    agent = one_agent(handler, dead_letter=None).share_agents["agent"]
    return asyncio.ensure_future(prepare(agent, admin, MEMORY, clock))


async def test_a_coordinator_that_is_being_replaced_is_asked_again():
    clock, admin = ManualClock(), Admin(ErrorCode.COORDINATOR_NOT_AVAILABLE, 3)

    start = starting(admin, clock)
    await clock.advance(3 * PREPARE_PAUSE_S)

    assert (await start).locks > 0
    assert admin.left == 0


async def test_a_coordinator_that_never_comes_is_not_asked_for_ever():
    clock, admin = ManualClock(), Admin(ErrorCode.COORDINATOR_NOT_AVAILABLE, 1_000)

    start = starting(admin, clock)
    await clock.advance(PREPARE_TRIES * PREPARE_PAUSE_S)

    with pytest.raises(BackendError, match=r"could not be set up: settings: .*the words of the server; see whether"):
        await start
    assert admin.asked == PREPARE_TRIES


async def test_settings_that_are_refused_are_not_tried_again():
    admin = Admin(ErrorCode.INVALID_CONFIG, 1)

    with pytest.raises(UsageError, match="its group's settings are refused: settings: INVALID_CONFIG"):
        await starting(admin, ManualClock())
    assert admin.asked == 1


class Brokers(Admin):
    """No topic is there, and for so many tries brokers are too few to make one."""

    async def describe_topic(self, name: str) -> None:
        raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about=f"topic {name}")

    async def create_topic(self, name: str, **_: Any) -> None:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise ServerError(self.code, "factor 3 larger than available brokers 2", about=f"creating topic {name}")

    async def alter_group_configs(self, group_id: str, configs: Any, *, dry_run: bool = False) -> None:
        """All are taken."""


async def test_a_topic_that_cannot_be_made_while_a_broker_restarts_is_made_when_it_is_back():
    clock, admin = ManualClock(), Brokers(ErrorCode.INVALID_REPLICATION_FACTOR, 3)

    start = starting(admin, clock)
    await clock.advance(3 * PREPARE_PAUSE_S)

    assert (await start).locks > 0
    assert admin.left == 0


async def test_a_topic_that_needs_more_brokers_than_there_are_is_told_of_with_the_setting_to_change():
    clock, admin = ManualClock(), Brokers(ErrorCode.INVALID_REPLICATION_FACTOR, 1_000)

    start = starting(admin, clock)
    await clock.advance(PREPARE_TRIES * PREPARE_PAUSE_S)

    with pytest.raises(BackendError, match=r"as their default\.replication\.factor says, lower that setting"):
        await start
    assert admin.asked == PREPARE_TRIES


async def test_a_setting_that_the_groups_leader_does_not_know_says_that_it_is_of_an_older_release():
    admin = Admin(ErrorCode.INVALID_CONFIG, 1, "unknown setting 'share.key.order'")

    with pytest.raises(UsageError, match=r"share\.key\.order.; who leads the group runs an older"):
        await starting(admin, ManualClock())


class Beside(Admin):
    """A group that another worker has set up, with so many members."""

    def __init__(self, members: int, **settings: str) -> None:
        super().__init__(ErrorCode.NONE, 0)
        self.members = [f"m{number}" for number in range(members)]
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}

    async def group_configs(self, group_id: str) -> list[ConfigEntry]:
        own = [ConfigEntry(name=name, value=value, is_default=False) for name, value in self.settings.items()]
        return [*own, ConfigEntry(name="share.delivery.priority", value="redeliveries", is_default=True)]

    async def describe_group(self, group_id: str) -> Any:
        return SimpleNamespace(members=self.members)


async def test_a_worker_with_other_settings_than_those_that_run_warns(caplog):
    await starting(Beside(2, share_auto_offset_reset="latest", share_record_lock_duration_ms="9000"), ManualClock())

    [line] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "group=t.agent has 2 members" in line
    assert "share.auto.offset.reset=earliest (was latest)" in line
    assert "lock.duration" not in line, "what the agent does not say stays as it is"


async def test_settings_of_a_group_that_nobody_works_on_may_change(caplog):
    await starting(Beside(0, share_auto_offset_reset="latest"), ManualClock())
    await starting(Beside(1, share_auto_offset_reset="earliest"), ManualClock())

    assert not [one for one in caplog.records if one.levelname == "WARNING"]


@pytest.mark.parametrize("behind", range(4))
async def test_a_worker_that_starts_beside_another_one_with_its_settings_does_not_warn(caplog, behind):
    class Starting(Beside):
        """After so many questions the other one, which does the same, has set them and joined."""

        questions = 0

        async def group_configs(self, group_id: str) -> list[ConfigEntry]:
            return self._told(await super().group_configs(group_id))

        async def describe_group(self, group_id: str) -> Any:
            return self._told(await super().describe_group(group_id))

        def _told(self, found: Any) -> Any:
            if self.questions == behind:
                self.settings, self.members = {"share.auto.offset.reset": "earliest"}, ["the other"]
            self.questions += 1
            return found

    await starting(Starting(0, share_auto_offset_reset="latest"), ManualClock())

    assert not [one for one in caplog.records if one.levelname == "WARNING"]


class Deaf(Admin):
    """Knows topics; nobody leads its groups, and whoever asks about one is told."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NONE, 0)
        self.groups: list[str] = []

    async def group_configs(self, group_id: str) -> list[ConfigEntry]:
        self.groups.append(group_id)
        return []


async def test_a_rehearsal_asks_nobody_about_groups_but_who_leads_them():
    topics, leader = Deaf(), Admin(ErrorCode.GROUP_ID_NOT_FOUND, 0)
    agent = one_agent(handler, dead_letter=None).share_agents["agent"]

    await rehearse(agent, topics, MEMORY, leader)

    assert topics.groups == []
    assert topics.asked == 0
    assert leader.asked == 1
