"""The names of spans, attributes and metrics: OpenTelemetry's semantic conventions for messaging, and flowshare's own.

None of the names for messaging is stable. They come from one version (`VERSION`), whose schema every span and metric
names (`SCHEMA_URL`); when a later version renames something, this is the only place to change. flowshare had no earlier
names, so `OTEL_SEMCONV_STABILITY_OPT_IN` has nothing to choose from and is not read.
Source: https://opentelemetry.io/docs/specs/semconv/messaging/ (messaging-spans, messaging-metrics, kafka).
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "1.44.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{VERSION}"
SCOPE: Final = "flowshare"
"""Instrumentation scope of all spans and metrics."""

# --- operations: the first word of a span's name, and its type -------------------------------------------------------
PROCESS: Final = "process"
SEND: Final = "send"
SETTLE: Final = "settle"

# --- attributes of the conventions -----------------------------------------------------------------------------------
SYSTEM: Final = "messaging.system"
KAFKA: Final = "kafka"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
CLIENT_ID: Final = "messaging.client.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
OFFSET: Final = "messaging.kafka.offset"
KEY: Final = "messaging.kafka.message.key"
TOMBSTONE: Final = "messaging.kafka.message.tombstone"
ERROR_TYPE: Final = "error.type"
EXCEPTION: Final = "exception"
"""The event of an exception."""
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_TRACE: Final = "exception.stacktrace"

# --- flowshare's own -------------------------------------------------------------------------------------------------
AGENT: Final = "flowshare.agent"
BACKEND: Final = "flowshare.backend"
ATTEMPT: Final = "flowshare.attempt"
OUTCOME: Final = "flowshare.outcome"
ACCEPTED: Final = "flowshare.settle.accepted"
RELEASED: Final = "flowshare.settle.released"
REJECTED: Final = "flowshare.settle.rejected"
OUTPUTS: Final = "flowshare.settle.outputs"
BREAKER_STATE: Final = "flowshare.breaker.state"

# --- metrics ---------------------------------------------------------------------------------------------------------
PROCESS_DURATION: Final = "messaging.process.duration"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
BREAKER_STATUS: Final = "flowshare.breaker.status"
BREAKER_OPENINGS: Final = "flowshare.breaker.openings"
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bounds of the durations' buckets in seconds, as the conventions advise."""

SPAN_NAMES: Final = (PROCESS, SEND, SETTLE)
ATTRIBUTES: Final[dict[str, str]] = {
    SYSTEM: "`kafka` on every backend: that is the protocol",
    OPERATION_NAME: "`process`, `send` or `settle`",
    OPERATION_TYPE: "the same",
    DESTINATION: "the topic",
    PARTITION: "the partition, where it is one",
    GROUP: "the agent's group (not of *send*)",
    CLIENT_ID: "the app's id",
    BATCH_COUNT: "records of a batch, or of an acknowledgement",
    OFFSET: "of a single record",
    KEY: "of a single record, where it is text; 128 characters of it",
    TOMBSTONE: "true where a single record has no value",
    ERROR_TYPE: "of what failed: the exception's class, or the broker's error code",
    AGENT: "the agent's name (not of *send*)",
    BACKEND: "`memory`, `embedded`, `workers` or `native`",
    ATTEMPT: "how often the record was delivered, this time included; of a batch the highest",
    OUTCOME: "of *process*: `accepted`, `released`, `retried`, `rejected`; `mixed` of a batch whose records differ",
    ACCEPTED: "of *settle*: records that were accepted",
    RELEASED: "of *settle*: records that were put back",
    REJECTED: "of *settle*: records that were rejected",
    OUTPUTS: "of *settle* with `exactly_once`: records written in the same step",
    BREAKER_STATE: "of `flowshare.breaker.status`: `closed`, `open` or `half-open`",
}
"""Every attribute, with its meaning."""
METRICS: Final[dict[str, tuple[str, str]]] = {
    PROCESS_DURATION: ("histogram, s", "how long handlers took, by outcome"),
    CONSUMED_MESSAGES: ("counter", "records that handlers got"),
    SENT_MESSAGES: ("counter", "records that were sent, failed ones too"),
    OPERATION_DURATION: (
        "histogram, s",
        "how long sending a record took until it was confirmed, and an acknowledgement",
    ),
    BREAKER_STATUS: ("gauge", "of agents with a breaker: 1 for the state that their group's is in, 0 for the others"),
    BREAKER_OPENINGS: ("counter", "how often it opened, as the agent heard"),
}
"""Every metric, its kind, and its meaning."""
