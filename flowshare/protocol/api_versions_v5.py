"""ApiVersions v5 (Kafka 4.4, KIP-1242), which kio does not have yet, in the form of kio's own modules.

The request names the broker and cluster that are meant; the answer is that of v4. `protocol.kafka.module` finds it.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.api_versions.v4 import request as v4_request
from kio.schema.api_versions.v4.response import (
    ApiVersion,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kio.schema.api_versions.v4.response import (
    ApiVersionsResponse as V4Response,
)
from kio.schema.request_header.v2.header import RequestHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

__all__ = ["ApiVersion", "ApiVersionsRequest", "ApiVersionsResponse", "FinalizedFeatureKey", "SupportedFeatureKey"]

VERSION = i16(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """Names the client, and the broker that is meant: `cluster_id` and `node_id` are both set, or None and −1."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = VERSION
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = v4_request.ApiVersionsRequest.__api_key__
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    client_software_name: str = field(metadata={"kafka_type": "string"})
    client_software_version: str = field(metadata={"kafka_type": "string"})
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse(V4Response):
    """The answer, as in v4."""

    __version__: ClassVar[i16] = VERSION
