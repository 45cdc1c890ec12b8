"""The version of the Kafka that the tests run on, compared with others."""

from __future__ import annotations

from flowshare.dev.jars import VERSION


def is_from(version: str) -> bool:
    """True if the Kafka of the tests is of this version or a later one.

    >>> is_from("4.2"), is_from("99.0")
    (True, False)
    """
    return _numbers(VERSION) >= _numbers(version)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]
