"""`fs.errors`: the errors that a user of flowshare can meet, under one root.

    FlowshareError
      AgentError                  of share agents
        UsageError                the application is written or set up wrongly; raised at import or at start
          OptionError             an option's name or value is refused (also a TypeError)
          AnnotationError         a handler's signature is refused (also a TypeError)
        UndecodableValue          a record's value does not fit the handler's annotation (also a ValueError)
          UnreadableBytes         the bytes stored at the record's place are no record
        Unencodable               a value cannot be turned into bytes for a topic (also a TypeError)
        CodecUnavailable          a codec's means are unavailable now; the record comes again
        RegistryError             of a schema registry
          RegistryUnavailable     the registry does not answer (also a CodecUnavailable); its records wait
          UnknownSchema           the registry has no such schema (also a ValueError)
          SchemaRefused           a schema is not taken: it is incompatible, too large, or none (also a ValueError)
        Overtaken                 `fs.Once`: a later delivery of the record's key has written already
        AppFailed                 a task of an application has ended by an error, or Faust's part of it
      AppNotFound                 `module:app` leads to no App
      PagesError                  health pages and metrics cannot be served
      BadPages                    options of pages are refused (also a ValueError)
      BackendError                a backend cannot be used
        NoLogin                   another process's path does not let this one in
      BadBrokerUrl                a broker URL is refused (also a ValueError)
      ClientError                 of consumers, producers and administration
        ServerError               the server refused: `code`, `retriable`
        NotConnected              no connection in time; the request was never sent (also a ConnectionError)
        ConnectionLost            the connection ended before the answer (also a ConnectionError)
        Unsupported               the broker lacks the API, or has only versions without the needed fields
        IllegalState              the calls contradict each other
          Closed                  the object was closed
        Wakeup                    `wakeup()` was called
        RecordError               one record cannot be decoded: `topic`, `partition`, `offset`
        CorruptRecords            the log's bytes are damaged: `topic`, `partition`, `first`, `last`
        RecordTooLarge            the record is larger than allowed
        BufferFull                the producer's buffer has no room now
        NotCommitted              the commit of finished `records` is not known
        DeliveryTimeout           a record was not confirmed in time; it may or may not be in the log
        GroupRefused              a consumer group takes no such member
        PartitionMismatch         a KMQ queue and its markers have not the same number of partitions
        BadSecurity               TLS or SASL settings are refused (also a ValueError)
        SlotGroupRefused          a worker cannot be one of its fleet
        StateTopicRefused         a fleet's state topic has wrong settings
        LoginError                the other end's message is no login, or does not prove that it knows the user
      LogError                    of an embedded path: its topics and its disk
        StorageHeld               another process holds the path
        StorageDamaged            the stored data contradict themselves; opening changed nothing
        StorageError              the disk refused a write; no part of it was confirmed
          StorageFull             there is no room on the disk
          NotPrivate              other users of the machine could read or change the path
      DataLoss                    Spark: the log lost records that a query was to read (these are RuntimeErrors, too)
      LogGone                     Spark: the log cannot be read now; the batch fails, and is read again
      Fenced                      Spark: another process runs this query by now
      NotWritten                  Spark: a batch reported as committed is not in the checkpoint
      DamagedNote                 Spark: the source's note in the checkpoint cannot be read
      StrangeCheckpoint           Spark: the checkpoint is a copy of a used one, or older than the group
      SharedGroup                 Spark: two sources of one query read a topic in one group
      OutcomesLost                Spark: no source of the group took the outcomes from `settle`
      SinkError                   Spark: rows could not be written to topics
        TornBatch                 a part of a batch is in its topics, and the rest cannot be written
      SparkMissing                Spark is not installed, or has no Java
      SparkGone                   Spark's driver or cluster has ended
      NotIdle                     `flowshare.testing`: the agents still work (also an AssertionError)

Each text has the event and the remedy. Errors that only a command meets, or that flowshare handles itself, are
FlowshareErrors, too (`tests/test_errors.py` lists them). `fs.Release` and `fs.Reject` are outcomes, not errors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowshare.core_errors import FlowshareError as FlowshareError

_MODULES = {
    "flowshare.agents.handler.errors": (
        "AgentError UsageError OptionError AnnotationError UndecodableValue UnreadableBytes Unencodable Overtaken "
        "AppFailed"
    ),
    "flowshare.agents.handler.codec": "CodecUnavailable",
    "flowshare.agents.codecs.client": "RegistryError RegistryUnavailable UnknownSchema SchemaRefused",
    "flowshare.agents.app.loading": "AppNotFound",
    "flowshare.agents.pages.site": "PagesError",
    "flowshare.agents.pages.gate": "BadPages",
    "flowshare.backend.base": "BackendError",
    "flowshare.backend.path_login": "NoLogin",
    "flowshare.backend.url": "BadBrokerUrl",
    "flowshare.client.errors": (
        "ClientError ServerError NotConnected ConnectionLost Unsupported IllegalState Closed Wakeup "
        "RecordError CorruptRecords RecordTooLarge BufferFull NotCommitted DeliveryTimeout"
    ),
    "flowshare.client.groups.membership": "GroupRefused",
    "flowshare.client.kmq.topics": "PartitionMismatch",
    "flowshare.client.net.login": "LoginError",
    "flowshare.client.net.security": "BadSecurity",
    "flowshare.fleet.slot_group": "SlotGroupRefused",
    "flowshare.fleet.state.topic": "StateTopicRefused",
    "flowshare.log.base": "LogError StorageHeld StorageDamaged StorageError StorageFull",
    "flowshare.log.folder": "NotPrivate",
    "flowshare.spark.errors": "SparkGone",
    "flowshare.spark.sessions": "SparkMissing",
    "flowshare.spark.sink.broker": "SinkError",
    "flowshare.spark.sink.transactions": "TornBatch",
    "flowshare.spark.source.checkpoint": "DamagedNote NotWritten",
    "flowshare.spark.source.ledger": "StrangeCheckpoint",
    "flowshare.spark.source.member": "Fenced",
    "flowshare.spark.source.microbatches": "SharedGroup",
    "flowshare.spark.source.outcomes": "OutcomesLost",
    "flowshare.spark.source.reading": "DataLoss LogGone",
    "flowshare.testing.harness": "NotIdle",
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = ["FlowshareError", *sorted(_WHERE)]

if TYPE_CHECKING:
    from flowshare.agents.app.loading import AppNotFound as AppNotFound
    from flowshare.agents.codecs.client import RegistryError as RegistryError
    from flowshare.agents.codecs.client import RegistryUnavailable as RegistryUnavailable
    from flowshare.agents.codecs.client import SchemaRefused as SchemaRefused
    from flowshare.agents.codecs.client import UnknownSchema as UnknownSchema
    from flowshare.agents.handler.codec import CodecUnavailable as CodecUnavailable
    from flowshare.agents.handler.errors import AgentError as AgentError
    from flowshare.agents.handler.errors import AnnotationError as AnnotationError
    from flowshare.agents.handler.errors import AppFailed as AppFailed
    from flowshare.agents.handler.errors import OptionError as OptionError
    from flowshare.agents.handler.errors import Overtaken as Overtaken
    from flowshare.agents.handler.errors import UndecodableValue as UndecodableValue
    from flowshare.agents.handler.errors import Unencodable as Unencodable
    from flowshare.agents.handler.errors import UnreadableBytes as UnreadableBytes
    from flowshare.agents.handler.errors import UsageError as UsageError
    from flowshare.agents.pages.gate import BadPages as BadPages
    from flowshare.agents.pages.site import PagesError as PagesError
    from flowshare.backend.base import BackendError as BackendError
    from flowshare.backend.path_login import NoLogin as NoLogin
    from flowshare.backend.url import BadBrokerUrl as BadBrokerUrl
    from flowshare.client.errors import BufferFull as BufferFull
    from flowshare.client.errors import ClientError as ClientError
    from flowshare.client.errors import Closed as Closed
    from flowshare.client.errors import ConnectionLost as ConnectionLost
    from flowshare.client.errors import CorruptRecords as CorruptRecords
    from flowshare.client.errors import DeliveryTimeout as DeliveryTimeout
    from flowshare.client.errors import IllegalState as IllegalState
    from flowshare.client.errors import NotCommitted as NotCommitted
    from flowshare.client.errors import NotConnected as NotConnected
    from flowshare.client.errors import RecordError as RecordError
    from flowshare.client.errors import RecordTooLarge as RecordTooLarge
    from flowshare.client.errors import ServerError as ServerError
    from flowshare.client.errors import Unsupported as Unsupported
    from flowshare.client.errors import Wakeup as Wakeup
    from flowshare.client.groups.membership import GroupRefused as GroupRefused
    from flowshare.client.kmq.topics import PartitionMismatch as PartitionMismatch
    from flowshare.client.net.login import LoginError as LoginError
    from flowshare.client.net.security import BadSecurity as BadSecurity
    from flowshare.fleet.slot_group import SlotGroupRefused as SlotGroupRefused
    from flowshare.fleet.state.topic import StateTopicRefused as StateTopicRefused
    from flowshare.log.base import LogError as LogError
    from flowshare.log.base import StorageDamaged as StorageDamaged
    from flowshare.log.base import StorageError as StorageError
    from flowshare.log.base import StorageFull as StorageFull
    from flowshare.log.base import StorageHeld as StorageHeld
    from flowshare.log.folder import NotPrivate as NotPrivate
    from flowshare.spark.errors import SparkGone as SparkGone
    from flowshare.spark.sessions import SparkMissing as SparkMissing
    from flowshare.spark.sink.broker import SinkError as SinkError
    from flowshare.spark.sink.transactions import TornBatch as TornBatch
    from flowshare.spark.source.checkpoint import DamagedNote as DamagedNote
    from flowshare.spark.source.checkpoint import NotWritten as NotWritten
    from flowshare.spark.source.ledger import StrangeCheckpoint as StrangeCheckpoint
    from flowshare.spark.source.member import Fenced as Fenced
    from flowshare.spark.source.microbatches import SharedGroup as SharedGroup
    from flowshare.spark.source.outcomes import OutcomesLost as OutcomesLost
    from flowshare.spark.source.reading import DataLoss as DataLoss
    from flowshare.spark.source.reading import LogGone as LogGone
    from flowshare.testing.harness import NotIdle as NotIdle


def __getattr__(name: str) -> Any:
    """Load an error's class at its first use (PEP 562), so that catching a time-out does not import Spark."""
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"flowshare.errors has no {name!r}; its text lists what there is: help(flowshare.errors)")
    return getattr(importlib.import_module(where), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
