"""flowshare: share groups for Python.

Names are loaded at first use (PEP 562), so that `import flowshare` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "AcknowledgeType": "flowshare.share.types",
    "App": "flowshare.agents.app",
    "Batch": "flowshare.agents.batching",
    "BatchRecord": "flowshare.agents.batching",
    "BlockingShareConsumer": "flowshare.backend.blocking",
    "Broker": "flowshare.backend.broker",
    "Console": "flowshare.agents.sinks",
    "Delivery": "flowshare.agents.delivery",
    "Folder": "flowshare.agents.sinks",
    "Jdbc": "flowshare.agents.sinks",
    "Produce": "flowshare.agents.sinks",
    "Record": "flowshare.agents.models",
    "Records": "flowshare.agents.batching",
    "Reject": "flowshare.agents.outcomes",
    "Release": "flowshare.agents.outcomes",
    "Retry": "flowshare.agents.retry",
    "Send": "flowshare.agents.send",
    "ConsumerSettings": "flowshare.client.settings",
    "ProducerSettings": "flowshare.client.settings",
    "ShareAdmin": "flowshare.client.admin",
    "ShareConsumer": "flowshare.client.consumer",
    "current_delivery": "flowshare.agents.delivery",
    "exponential": "flowshare.agents.retry",
    "testing": "flowshare.testing",
    "tracing": "flowshare.agents.tracing",
}

__all__ = [*sorted(_WHERE), "__version__"]

if TYPE_CHECKING:
    from flowshare import testing as testing
    from flowshare.agents import tracing as tracing
    from flowshare.agents.app import App as App
    from flowshare.agents.batching import Batch as Batch
    from flowshare.agents.batching import BatchRecord as BatchRecord
    from flowshare.agents.batching import Records as Records
    from flowshare.agents.delivery import Delivery as Delivery
    from flowshare.agents.delivery import current_delivery as current_delivery
    from flowshare.agents.models import Record as Record
    from flowshare.agents.outcomes import Reject as Reject
    from flowshare.agents.outcomes import Release as Release
    from flowshare.agents.retry import Retry as Retry
    from flowshare.agents.retry import exponential as exponential
    from flowshare.agents.send import Send as Send
    from flowshare.agents.sinks import Console as Console
    from flowshare.agents.sinks import Folder as Folder
    from flowshare.agents.sinks import Jdbc as Jdbc
    from flowshare.agents.sinks import Produce as Produce
    from flowshare.backend.blocking import BlockingShareConsumer as BlockingShareConsumer
    from flowshare.backend.broker import Broker as Broker
    from flowshare.client.admin import ShareAdmin as ShareAdmin
    from flowshare.client.consumer import ShareConsumer as ShareConsumer
    from flowshare.client.settings import ConsumerSettings as ConsumerSettings
    from flowshare.client.settings import ProducerSettings as ProducerSettings
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
