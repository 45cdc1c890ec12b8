"""Settings of groups, topics and brokers."""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.errors import ClientError
from flowshare.client.wire.base import Codec, by_kio, code, text
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import (
    ConfigEntry,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

RESOURCES: Final = {"topic": 2, "broker": 4, "group": 32}
"""Kafka's numbers of what has settings."""
OWN: Final = {"topic": {1}, "broker": {2, 3, 4}, "group": {8}}
"""The sources that mean "set on this very thing"; all others are defaults to it."""
SET: Final = 0
DELETE: Final = 1


def _number(resource_type: str) -> int:
    if resource_type not in RESOURCES:
        raise ClientError(f"{resource_type!r} has no settings; use one of {', '.join(RESOURCES)}")
    return RESOURCES[resource_type]


def _describe(request: DescribeConfigsRequest, version: int) -> Any:
    m = module("describe_configs", version, "request")
    resource = m.DescribeConfigsResource(
        resource_type=_number(request.resource_type), resource_name=request.resource, configuration_keys=None
    )
    return m.DescribeConfigsRequest(resources=(resource,), include_synonyms=False, include_documentation=True)


def _describe_answer(answer: Any, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    if len(answer.results) != 1:
        return DescribeConfigsResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=_counted(len(answer.results)))
    (result,) = answer.results
    return DescribeConfigsResponse(
        error=code(result.error_code),
        message=text(result.error_message),
        entries=tuple(
            ConfigEntry(
                name=entry.name,
                value="" if entry.value is None else entry.value,
                is_default=int(entry.config_source) not in OWN[request.resource_type],
                documentation=entry.documentation or "",
                read_only=entry.read_only,
            )
            for entry in result.configs
        ),
    )


def _alter(request: IncrementalAlterConfigsRequest, version: int) -> Any:
    m = module("incremental_alter_configs", version, "request")
    resource = m.AlterConfigsResource(
        resource_type=_number(request.resource_type),
        resource_name=request.resource,
        configs=tuple(
            m.AlterableConfig(name=name, config_operation=DELETE if value is None else SET, value=value)
            for name, value in request.configs.items()
        ),
    )
    return m.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=request.validate_only)


def _alter_answer(answer: Any, _: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    if len(answer.responses) != 1:
        message = _counted(len(answer.responses))
        return IncrementalAlterConfigsResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=message)
    (result,) = answer.responses
    return IncrementalAlterConfigsResponse(error=code(result.error_code), message=text(result.error_message))


def _counted(number: int) -> str:
    return f"the answer has {number} results for one question"


CODECS: Final[dict[type[Any], Codec]] = {
    DescribeConfigsRequest: Codec(
        key=ApiKey.DESCRIBE_CONFIGS,
        name="describe_configs",
        lowest=4,
        highest=4,
        write=by_kio(_describe),
        decode=_describe_answer,
    ),
    IncrementalAlterConfigsRequest: Codec(
        key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
        name="incremental_alter_configs",
        lowest=1,
        highest=1,
        write=by_kio(_alter),
        decode=_alter_answer,
    ),
}
