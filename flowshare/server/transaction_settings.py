"""The settings of producers and transactions, under the names of Kafka's brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flowshare.share.settings import Setting, read_number, unknown
from flowshare.transactions.config import TransactionConfig

INT_MAX: Final = 2**31 - 1
_DEFAULTS: Final = TransactionConfig()


def _number(name: str, field: str, doc: str) -> Setting:
    default = str(getattr(_DEFAULTS, field))
    return Setting(name=name, field=field, default=default, low=1, high=INT_MAX, doc=doc, read=read_number)


TRANSACTION_CONFIGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        _number(
            "transactional.id.max",
            "ids_max",
            "Transactional ids that may exist; one principal (without logins: address) makes no more than are left.",
        ),
        _number("transaction.max.timeout.ms", "timeout_max_ms", "Longest timeout of a producer's transactions."),
        _number(
            "transactional.id.expiration.ms", "id_expiration_ms", "How long a transactional id is kept without use."
        ),
        _number(
            "producer.id.expiration.ms",
            "producer_expiration_ms",
            "How long a partition remembers an idempotent producer that writes nothing.",
        ),
    )
}
"""Name -> setting."""


def parse_transactions(values: Mapping[str, str]) -> TransactionConfig:
    """Read settings by their names; what is not given has its default.

    Raises: InvalidConfig for an unknown name and a value out of bounds.
    """
    for name in values:
        if name not in TRANSACTION_CONFIGS:
            raise unknown(name, TRANSACTION_CONFIGS)
    read: dict[str, Any] = {
        setting.field: setting.parse(values.get(name, setting.default)) for name, setting in TRANSACTION_CONFIGS.items()
    }
    return TransactionConfig(**read)
