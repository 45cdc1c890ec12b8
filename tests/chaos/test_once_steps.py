"""Stopping at a step, in this process: functions wrapped by hand, as `patch` wraps the product's."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import once_steps
from tests.chaos.once_judge import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.chaos.once_steps import POINTS, Point, Steps
from tests.waiting import blocking_until, until

STEP = "a step"


class Product:
    """Class whose methods are patched."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def settle(self, outputs: str) -> str:
        self.done.append(outputs)
        return outputs.upper()

    def decide(self, what: str) -> str:
        self.done.append(what)
        return what.upper()


def wrapped(name: str, when: Any, folder: Path, *, with_outputs: bool = False) -> Any:
    return once_steps._wrapped(vars(Product)[name], STEP, Point("", when, with_outputs), folder)


@pytest.mark.asyncio
@pytest.mark.parametrize(("when", "done"), [("before", []), ("after", ["a"])])
async def test_who_comes_to_the_step_first_stands_there_until_it_is_released(tmp_path, when, done):
    steps, product = Steps(tmp_path), Product()
    settle = wrapped("settle", when, tmp_path)

    steps.arm(STEP)
    first = asyncio.ensure_future(settle(product, "a"))
    await until(steps.reached)
    stopped, seen = steps.reached(), list(product.done)
    second = await settle(product, "b")
    steps.release()

    assert stopped == os.getpid()
    assert seen == done
    assert second == "B"
    assert await first == "A"
    assert steps.reached() is None


@pytest.mark.asyncio
async def test_a_call_without_outputs_goes_on_where_they_are_asked_for(tmp_path):
    steps = Steps(tmp_path)

    steps.arm(STEP)
    assert await wrapped("settle", "after", tmp_path, with_outputs=True)(Product(), "") == ""

    assert steps.reached() is None


@pytest.mark.asyncio
async def test_nobody_stops_at_a_step_that_is_not_armed(tmp_path):
    steps = Steps(tmp_path)

    steps.arm("another step")

    assert await wrapped("settle", "before", tmp_path)(Product(), "a") == "A"
    assert steps.reached() is None


@pytest.mark.asyncio
async def test_nobody_stops_when_it_is_disarmed(tmp_path):
    steps = Steps(tmp_path)

    steps.arm(STEP)
    steps.disarm()

    assert await wrapped("settle", "before", tmp_path)(Product(), "a") == "A"


def test_a_function_that_does_not_wait_stands_with_its_thread(tmp_path):
    steps, product = Steps(tmp_path), Product()
    thread = threading.Thread(target=wrapped("decide", "before", tmp_path), args=(product, "a"))

    steps.arm(STEP)
    thread.start()
    blocking_until(steps.reached)
    seen = list(product.done)
    steps.release()
    thread.join()

    assert seen == []
    assert product.done == ["a"]


@pytest.mark.parametrize("backend", ["embedded", "workers"])
def test_each_step_without_the_promise_is_in_the_product(monkeypatch, tmp_path, backend):
    places = {once_steps.found(point) for point in POINTS[backend, AT_LEAST_ONCE].values()}
    originals = {(owner, name): vars(owner)[name] for owner, name in places}
    for (owner, name), original in originals.items():
        monkeypatch.setattr(owner, name, original)  # puts it back
    monkeypatch.setenv("STEP_BACKEND", backend)
    monkeypatch.setenv("STEP_FOLDER", str(tmp_path))
    monkeypatch.setenv("ONCE", AT_LEAST_ONCE)

    once_steps.patch()

    for (owner, name), original in originals.items():
        assert vars(owner)[name] is not original
        assert inspect.unwrap(vars(owner)[name]) is inspect.unwrap(original)
        assert vars(owner)[name].handles == original.handles


def test_all_backends_have_steps_with_the_promise():
    assert once_steps.steps("embedded", EXACTLY_ONCE) == [
        once_steps.DECIDE,
        once_steps.WRITTEN,
        once_steps.ANSWER,
    ]
    assert set(once_steps.steps("workers", EXACTLY_ONCE)) > {once_steps.OUTPUTS_WRITTEN, once_steps.ENDED}
