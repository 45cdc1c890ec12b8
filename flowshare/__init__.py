"""flowshare: share groups for Python.

Names are loaded at first use (PEP 562), so that `import flowshare` costs next to nothing.

Packages and layers: docs/architecture.md. Modules beside them: `errors`, `core_errors`, `version`, `clock`, `tasks`,
`forks`, `garbage` (the collector), `optimized` (-O is refused), `printable` (foreign text made safe), `entry` (the
command).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowshare.version import __version__ as __version__

_MODULES = {
    "flowshare.agents.app.app": "App",
    "flowshare.agents.codecs.avro": "Avro",
    "flowshare.agents.codecs.json_schema": "JsonSchema",
    "flowshare.agents.codecs.protobuf": "Protobuf",
    "flowshare.agents.codecs.registry": "Registry RegistryTls",
    "flowshare.agents.faust.models": "Record",
    "flowshare.agents.handler.batch": "Batch BatchRecord Records",
    "flowshare.agents.handler.codec": "Codec register_codec",
    "flowshare.agents.handler.breaker": "Breaker",
    "flowshare.agents.handler.delivery": "Delivery Fence current_delivery",
    "flowshare.agents.handler.once": "Once",
    "flowshare.agents.handler.order": "Header",
    "flowshare.agents.handler.outcomes": "Reject Release",
    "flowshare.agents.handler.retry": "Retry exponential",
    "flowshare.agents.handler.send": "Send",
    "flowshare.agents.handler.sinks": "Console Folder Jdbc Produce",
    "flowshare.backend.blocking": "BlockingShareConsumer",
    "flowshare.backend.broker": "Broker CooperativeConsumer Producer ShareAdmin ShareConsumer",
    "flowshare.client.settings": "ConsumerSettings CooperativeSettings ProducerSettings",
    "flowshare.core_errors": "FlowshareError",
    "flowshare.share.types": "AcknowledgeType",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}
_WHERE |= {"errors": "flowshare.errors", "testing": "flowshare.testing", "tracing": "flowshare.agents.handler.tracing"}

__all__ = [*sorted(_WHERE), "__version__"]

if TYPE_CHECKING:
    from flowshare import errors as errors
    from flowshare import testing as testing
    from flowshare.agents.app.app import App as App
    from flowshare.agents.codecs.avro import Avro as Avro
    from flowshare.agents.codecs.json_schema import JsonSchema as JsonSchema
    from flowshare.agents.codecs.protobuf import Protobuf as Protobuf
    from flowshare.agents.codecs.registry import Registry as Registry
    from flowshare.agents.codecs.registry import RegistryTls as RegistryTls
    from flowshare.agents.faust.models import Record as Record
    from flowshare.agents.handler import tracing as tracing
    from flowshare.agents.handler.batch import Batch as Batch
    from flowshare.agents.handler.batch import BatchRecord as BatchRecord
    from flowshare.agents.handler.batch import Records as Records
    from flowshare.agents.handler.breaker import Breaker as Breaker
    from flowshare.agents.handler.codec import Codec as Codec
    from flowshare.agents.handler.codec import register_codec as register_codec
    from flowshare.agents.handler.delivery import Delivery as Delivery
    from flowshare.agents.handler.delivery import Fence as Fence
    from flowshare.agents.handler.delivery import current_delivery as current_delivery
    from flowshare.agents.handler.once import Once as Once
    from flowshare.agents.handler.order import Header as Header
    from flowshare.agents.handler.outcomes import Reject as Reject
    from flowshare.agents.handler.outcomes import Release as Release
    from flowshare.agents.handler.retry import Retry as Retry
    from flowshare.agents.handler.retry import exponential as exponential
    from flowshare.agents.handler.send import Send as Send
    from flowshare.agents.handler.sinks import Console as Console
    from flowshare.agents.handler.sinks import Folder as Folder
    from flowshare.agents.handler.sinks import Jdbc as Jdbc
    from flowshare.agents.handler.sinks import Produce as Produce
    from flowshare.backend.blocking import BlockingShareConsumer as BlockingShareConsumer
    from flowshare.backend.broker import Broker as Broker
    from flowshare.backend.broker import CooperativeConsumer as CooperativeConsumer
    from flowshare.backend.broker import Producer as Producer
    from flowshare.backend.broker import ShareAdmin as ShareAdmin
    from flowshare.backend.broker import ShareConsumer as ShareConsumer
    from flowshare.client.settings import ConsumerSettings as ConsumerSettings
    from flowshare.client.settings import CooperativeSettings as CooperativeSettings
    from flowshare.client.settings import ProducerSettings as ProducerSettings
    from flowshare.core_errors import FlowshareError as FlowshareError
    from flowshare.share.types import AcknowledgeType as AcknowledgeType


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'flowshare' has no attribute {name!r}")
    module = importlib.import_module(where)
    value = module if where.rpartition(".")[2] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
