"""ApiVersions: the served APIs with their versions, and the client's software (KIP-35, KIP-511, KIP-584); a check that
the broker is the one that the client means (KIP-1242)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from flowshare import processes
from flowshare.protocol.client_software import MEANT_FROM, OWN_SOFTWARE, process_of, worker_of
from flowshare.protocol.declaration import Api
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module, write_response
from flowshare.protocol.translation import kafka_error
from flowshare.server.edge.base import Endpoint, SocketCall

LOWEST: Final = 0
HIGHEST: Final = 5
NO_NODE: Final = -1

LOOPBACK: Final = ("127.0.0.1", "::1")
SHARE_VERSION: Final = ("share.version", 1, 1)
"""Feature name, lowest and highest level: clients look for it before they join a share group (KIP-1022)."""

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


def endpoint(others: Iterable[Endpoint]) -> Endpoint:
    """Return the endpoint that advertises the given APIs and itself; flowshare's own APIs to its own clients only."""
    api = Api(ApiKey.API_VERSIONS, server=(LOWEST, HIGHEST))
    ranges = sorted([(int(api.key), LOWEST, HIGHEST), *((int(one.key), *one.versions) for one in others)])
    return Endpoint(api, partial(_answer, ranges))


async def _answer(ranges: Sequence[tuple[int, int, int]], call: SocketCall) -> Any:
    if call.version >= MEANT_FROM and (refused := _another(call)) is not None:
        return _response(call.version, refused, ())
    if call.version >= 3:
        name, version = call.request.client_software_name, call.request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return _response(call.version, ErrorCode.INVALID_REQUEST, ())
        call.peer.software = name
        call.peer.connection.own = name == OWN_SOFTWARE
        call.peer.connection.worker = worker_of(version) if name == OWN_SOFTWARE else None
        call.peer.connection.process = _process(call, version) if name == OWN_SOFTWARE else None
        if name == OWN_SOFTWARE:
            return _response(call.version, ErrorCode.NONE, ranges)
    # Other clients know Kafka's keys, and some end at an unknown one (kafka-python's `api_versions`).
    return _response(call.version, ErrorCode.NONE, [one for one in ranges if one[0] < ApiKey.FLOWSHARE])


def _another(call: SocketCall) -> ErrorCode | None:
    """Return the error for a client that means another broker: look for the brokers anew, or a mistake; None: it means
    this one."""
    asked, node = call.request, call.peer.node
    if (asked.cluster_id is None) != (asked.node_id == NO_NODE):
        return ErrorCode.INVALID_REQUEST
    if asked.cluster_id is None or (asked.cluster_id, asked.node_id) == (node.cluster_id, node.node_id):
        return None
    return ErrorCode.REBOOTSTRAP_REQUIRED


def _process(call: SocketCall, version: str) -> tuple[int, int] | None:
    """Return the process at the other end, if it is one of this machine that runs: the client's word is only a
    claim."""
    told = process_of(version)
    here = call.peer.connection.host in LOOPBACK
    return told if told is not None and here and processes.runs(told) else None


def refusal(correlation_id: int) -> bytes:
    """Return the frame for a version of ApiVersions that is not served: in the form of v0, naming the served ones."""
    served = ((int(ApiKey.API_VERSIONS), LOWEST, HIGHEST),)
    return write_response(correlation_id, _response(0, ErrorCode.UNSUPPORTED_VERSION, served))


def _response(version: int, error: ErrorCode, ranges: Iterable[tuple[int, int, int]]) -> Any:
    made: Any = module("api_versions", version, "response")
    fields: dict[str, Any] = {
        "error_code": kafka_error(error),
        "api_keys": tuple(
            made.ApiVersion(api_key=key, min_version=lowest, max_version=highest) for key, lowest, highest in ranges
        ),
    }
    if version >= 1:
        fields["throttle_time"] = timedelta()
    if version >= 3 and error is ErrorCode.NONE:
        name, lowest, highest = SHARE_VERSION
        # Before v4 a lowest level of 0 could not be told (KAFKA-17011); ours is 1.
        fields["supported_features"] = (made.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest),)
        fields["finalized_features_epoch"] = 0
        fields["finalized_features"] = (
            made.FinalizedFeatureKey(name=name, max_version_level=highest, min_version_level=lowest),
        )
    return made.ApiVersionsResponse(**fields)
