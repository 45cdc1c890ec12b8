"""The names of the public API follow one rule each."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import flowshare as fs

CLASSES = sorted(
    {name for name in fs.__all__ if inspect.isclass(getattr(fs, name)) and not issubclass(getattr(fs, name), Exception)}
)
HAS_A_UNIT = ("_s", "_ms", "_seconds", "_secs")


def _given(kind: type) -> set[str]:
    """Return the names of the arguments that a user may give to the class and its public methods."""
    names = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        own = method.__module__.startswith("flowshare.")
        if own and (not name.startswith("_") or name == "__init__"):
            names |= {f"{name}({parameter})" for parameter in inspect.signature(method).parameters}
    return names


@pytest.mark.parametrize("kind", [getattr(fs, name) for name in CLASSES], ids=lambda kind: kind.__name__)
def test_durations_are_seconds_and_their_names_have_no_unit(kind: type) -> None:
    assert [name for name in _given(kind) if name.removesuffix(")").endswith(HAS_A_UNIT)] == []


@pytest.mark.parametrize("name", ["max_poll_records", "max_poll_interval", "fetch_max_bytes", "fetch_max_wait"])
def test_settings_of_consumers_have_kafkas_names(name: str) -> None:
    assert name in {field.name for field in dataclasses.fields(fs.ConsumerSettings)}


@pytest.mark.parametrize("name", ["linger", "batch_size", "max_request_size", "buffer_memory", "delivery_timeout"])
def test_settings_of_producers_have_kafkas_names(name: str) -> None:
    assert name in {field.name for field in dataclasses.fields(fs.ProducerSettings)}
