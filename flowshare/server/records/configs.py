"""The config APIs: DescribeConfigs and IncrementalAlterConfigs for groups and topics, and the server's own settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.core_errors import InvalidConfig
from flowshare.log.base import InvalidTopic, UnknownTopic
from flowshare.log.topics import TOPIC_CONFIGS, check_configs, default_of
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    ConfigEntry,
    ConfiguredGroupsRequest,
    ConfiguredGroupsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)
from flowshare.protocol.messages.base import Response
from flowshare.server.runtime.connection import Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, Refused, refusal
from flowshare.server.runtime.state import GROUP_ID_BYTES_MAX
from flowshare.share.config import KEY_ORDER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from flowshare.log.base import Log
    from flowshare.server.groups.coordinator import ConsumerGroups
    from flowshare.server.share.service import ShareService
    from flowshare.share.config import ConfigValue

    AlterTopic = Callable[[str, Mapping[str, str | None]], Awaitable[object]]

GROUP: Final = "group"
TOPIC: Final = "topic"
BROKER: Final = "broker"
CONSUMER: Final = "consumer."
"""Beginning of the names of consumer groups' settings (KIP-848)."""


class ConfigApis(Family):
    """Answers the config APIs."""

    def __init__(
        self,
        service: ShareService,
        log: Log,
        alter_topic: AlterTopic | None = None,
        consumer_groups: ConsumerGroups | None = None,
    ) -> None:
        """alter_topic: changes a topic of the log; None: its topics are not this server's to change. consumer_groups:
        None: the brokers have them."""
        self._log = log
        self._consumer_groups = consumer_groups
        self._alter_topic = alter_topic
        self._service = service
        self._configs = service.configs

    @handles(DescribeConfigsRequest, DescribeConfigsResponse)
    async def describe(self, request: DescribeConfigsRequest, _: InProcess) -> DescribeConfigsResponse:
        """Describe all settings of a group, a topic or the server as they act. A group need not exist."""
        entries = self._describe(request)
        return DescribeConfigsResponse(entries=tuple(entries))

    @handles(IncrementalAlterConfigsRequest)
    async def alter(self, request: IncrementalAlterConfigsRequest, _: InProcess) -> Response:
        """Set and unset settings, all or none; they act from the next step on."""
        try:
            await self._alter(request)
        except InvalidTopic as error:
            return Response(error=ErrorCode.INVALID_CONFIG, message=str(error))
        except EXPECTED as error:
            return refusal(Response, error)
        return Response()

    @handles(ConfiguredGroupsRequest)
    async def configured(self, _: ConfiguredGroupsRequest, __: InProcess) -> ConfiguredGroupsResponse:
        """Return the groups with settings of their own."""
        consumer = () if self._consumer_groups is None else self._consumer_groups.configs.configured
        return ConfiguredGroupsResponse(group_ids=tuple(sorted({*self._configs.configured, *consumer})))

    def _describe(self, request: DescribeConfigsRequest) -> list[ConfigEntry]:
        if request.resource_type == GROUP:
            self._configs.check(request.resource)
            acting = self._configs.acting(request.resource)
            consumer = () if self._consumer_groups is None else self._consumer_groups.configs.values(request.resource)
            return _entries((*acting.values(self._configs.stored(request.resource)), *consumer))
        if request.resource_type == BROKER:  # without a node id: the settings for all brokers together, which are none
            return _entries(self._service.config.values(), read_only=True) if request.resource else []
        self._check_type(request.resource_type)
        topic = self._log.topics().get(request.resource)
        if topic is None:
            raise UnknownTopic(f"there is no topic {request.resource!r}")
        return [
            ConfigEntry(
                name=name,
                value=topic.configs.get(name, setting.default),
                is_default=name not in topic.configs,
                documentation=setting.doc,
            )
            for name, setting in sorted(TOPIC_CONFIGS.items())
        ]

    async def _alter(self, request: IncrementalAlterConfigsRequest) -> None:
        if request.resource_type == GROUP:
            if not 0 < len(request.resource.encode()) <= GROUP_ID_BYTES_MAX:
                raise Refused(ErrorCode.INVALID_REQUEST, f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes")
            await self._alter_group(request)
            return
        if request.resource_type == BROKER:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                "the server's own settings are read when it starts: stop it and start it with the new ones",
            )
        self._check_type(request.resource_type)
        if request.validate_only:
            if request.resource not in self._log.topics():
                raise UnknownTopic(f"there is no topic {request.resource!r}")
            check_configs({name: default_of(name) if text is None else text for name, text in request.configs.items()})
            return
        if self._alter_topic is None:
            raise InvalidTopic("topics are left to Kafka: use Kafka's own tools with the brokers' address")
        await self._alter_topic(request.resource, request.configs)

    async def _alter_group(self, request: IncrementalAlterConfigsRequest) -> None:
        """Change settings of a share group and of a consumer group of the same name, all or none."""
        group_id, groups = request.resource, self._consumer_groups
        consumer = {name: text for name, text in request.configs.items() if name.startswith(CONSUMER)}
        if consumer and groups is None:
            names = ", ".join(consumer)
            raise InvalidConfig(f"{names}: consumer groups are left to Kafka; set that at the brokers' address")
        share = {name: text for name, text in request.configs.items() if name not in consumer}
        await self._configs.alter(group_id, share, validate_only=True, by=request.by)
        reorders = KEY_ORDER in share and (share[KEY_ORDER] or "").strip() != self._configs.acting(group_id).key_order
        apply = self._apply_order if reorders else self._apply
        await self._service.coordinator.run(apply(request, share, consumer))

    async def _apply_order(
        self,
        request: IncrementalAlterConfigsRequest,
        share: Mapping[str, str | None],
        consumer: Mapping[str, str | None],
    ) -> None:
        """Do `_apply` if the order may change. Who joined meanwhile would be handed records in the old one."""
        with self._service.coordinator.changing_order(request.resource):
            await self._check_order(request.resource)
            await self._apply(request, share, consumer)

    async def _apply(
        self,
        request: IncrementalAlterConfigsRequest,
        share: Mapping[str, str | None],
        consumer: Mapping[str, str | None],
    ) -> None:
        """Store changed settings and let them act; not cut short, else they would be stored and not act."""
        group_id, groups = request.resource, self._consumer_groups
        if groups is not None and consumer:
            await groups.configs.alter(group_id, consumer, validate_only=request.validate_only)
            groups.configure(group_id)
        if share and not request.validate_only:
            await self._configs.alter(group_id, share, validate_only=False, by=request.by)
            await self._service.coordinator.configure(group_id)

    async def _check_order(self, group_id: str) -> None:
        """Check that a group's order may change: nothing was handed out in the old one (SG-18.2). Raises: Refused."""
        group = self._service.coordinator.groups.get(group_id)
        members = 0 if group is None else len(group.members)
        cannot = f"{KEY_ORDER} of group {group_id} cannot change while it has"
        if members:
            session_s = self._configs.acting(group_id).session_timeout_ms / 1000
            raise Refused(
                ErrorCode.NON_EMPTY_GROUP,
                f"{cannot} members ({members}): stop all its workers, and set it again. One that was killed stays a "
                f"member for {session_s:g} s, counted while its groups are served: by a worker with the order of "
                "before, or `flowshare serve`",
            )
        if in_flight := await self._service.coordinator.in_flight(group_id):
            raise Refused(
                ErrorCode.NON_EMPTY_GROUP,
                f"{cannot} records in flight ({in_flight}): wait until nothing is held, delayed or on its way to the "
                "dead letters, and set it again",
            )
        if self._configs.acting(group_id).key_order and (
            parked := await self._service.coordinator.parked_keys(group_id)
        ):
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"{cannot} parked keys ({parked}), whose order would be lost: replay or unpark them (flowshare dlq "
                f"parked {group_id}), and set it again",
            )

    @staticmethod
    def _check_type(resource_type: str) -> None:
        if resource_type != TOPIC:
            message = f"resource type {resource_type!r} is none of {GROUP}, {TOPIC}, {BROKER}"
            raise Refused(ErrorCode.INVALID_REQUEST, message)


def _entries(values: Iterable[ConfigValue], *, read_only: bool = False) -> list[ConfigEntry]:
    return [
        ConfigEntry(name=name, value=value, is_default=is_default, documentation=doc, read_only=read_only)
        for name, value, is_default, doc in values
    ]
