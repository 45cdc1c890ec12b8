"""Settings of producers and transactions; times in milliseconds, names and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """What a server grants producers and transactional ids: how long they are kept, and how many.

    timeout_max_ms: longest timeout that a producer may ask for (transaction.max.timeout.ms).
    id_expiration_ms: idle transactional ids are forgotten after this (transactional.id.expiration.ms).
    producer_expiration_ms: idle producers are forgotten after this (producer.id.expiration.ms).
    ids_max: transactional ids that may exist.
    """

    timeout_max_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    producer_expiration_ms: int = 86_400_000
    ids_max: int = 10_000
