"""Errors that come together, out of `asyncio.TaskGroup` and in groups of groups, keep what each of them means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.texts import LEAVES_MAX, leaves, named
from tests.agents.agents_kit import Seen, run_agent
from tests.agents.test_threads import app_of, threaded


class Declined(Exception):
    pass


class Several(ExceptionGroup[Exception]):
    """A group that an application makes of its own errors."""


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("several", list(errors))


def raised(error: BaseException | Callable[[], BaseException], **options: Any) -> Seen:
    """Run an agent whose handler raises this error at the first delivery, and return the results."""

    async def handler(value: bytes, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            raise error if isinstance(error, BaseException) else error()

    return run_agent(handler, **options)


@pytest.mark.parametrize(
    ("error", "options", "outcome", "reason"),
    [
        (group(fs.Reject("no")), {}, "dead_lettered", "no"),
        (group(fs.Reject("no"), ValueError("x")), {}, "dead_lettered", "no (beside ValueError: x)"),
        (group(group(group(fs.Reject("deep")))), {}, "dead_lettered", "deep"),
        (group(fs.Release(30), fs.Reject("no")), {}, "dead_lettered", "no"),
        (group(KeyError("k"), Declined("d")), {"reject": Declined}, "dead_lettered", "rejected because of Declined: d"),
        (
            group(TimeoutError("t"), ValueError("v")),
            {"retry": fs.Retry(on=TimeoutError)},
            "dead_lettered",
            "not to be retried: ExceptionGroup: several (2 sub-exceptions): TimeoutError: t; ValueError: v",
        ),
        (group(fs.Release(30)), {}, "released", "Release"),
        (group(fs.Release(5), group(fs.Release(30))), {"retry": fs.Retry(on=TimeoutError)}, "released", "Release"),
        (group(fs.Release(30), ValueError("v")), {}, "retried", "ValueError: v"),
        (group(ValueError("v"), KeyError("k")), {}, "retried", "ValueError: v; KeyError: 'k'"),
        (group(fs.errors.Overtaken("later"), fs.Reject("no")), {}, "released", "Overtaken: later"),
        (Several("s", [ValueError("v")]), {"retry": fs.Retry(on=Several)}, "retried", "Several: s (1 sub-exception)"),
        (Several("s", [ValueError("v")]), {"reject": Several}, "dead_lettered", "rejected because of Several: s"),
    ],
)
def test_the_gravest_of_several_errors_decides(
    error: BaseException, options: dict[str, Any], outcome: str, reason: str
):
    seen = raised(error, **options)

    assert seen.outcomes[0] == outcome
    assert reason in seen.report.reasons[0]


def test_the_longest_of_several_releases_counts():
    seen = raised(group(fs.Release(5), fs.Release(30), fs.Release(7)))

    assert seen.report.delays == [30]


def test_a_reject_out_of_a_task_group_is_a_dead_letter_at_once():
    async def handler(value: bytes) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refuse())
            tasks.create_task(asyncio.Event().wait())

    async def refuse() -> None:
        raise fs.Reject("negative total")

    seen = run_agent(handler)

    assert (seen.report.attempts, seen.dead[0].reason) == ([1], "negative total")


def test_a_dead_letter_names_the_error_in_a_group_of_one():
    async def handler(value: bytes) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    async def fail() -> None:
        raise ConnectionError("down")

    (letter,) = run_agent(handler, retry=fs.Retry(max_attempts=1)).dead

    assert letter.reason.endswith("unhandled errors in a TaskGroup (1 sub-exception): ConnectionError: down")
    assert letter.header("exception") == "builtins.ConnectionError"
    assert "in fail" in letter.header("trace")


@pytest.mark.parametrize("options", [{}, {"batch": fs.Batch(1)}, {"order": "key"}, {"at_most_once": True}])
def test_a_reject_in_a_group_is_one_for_every_kind_of_agent(options: dict[str, Any]):
    def one(value: bytes) -> None:
        raise group(fs.Reject("no"))

    def several(rows: fs.Records[bytes]) -> None:
        raise group(fs.Reject("no"))

    fun = several if "batch" in options else one
    seen = run_agent(fun, **options)
    threaded(app_of(fun, **options), [b"x"], lambda stats: stats["dead_lettered"] + stats["lost"] == 1)

    assert (seen.outcomes, seen.dead[0].reason) == (["dead_lettered"], "no")


def test_what_a_batch_handler_says_of_a_record_by_a_group_counts_as_raised():
    async def handler(rows: fs.Records[bytes]) -> None:
        rows.retry(rows[0], group(fs.Reject("no")))

    seen = run_agent(handler, batch=fs.Batch(1))

    assert seen.dead[0].reason == "no"


def test_a_class_of_reject_in_a_group_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture):
    raised(group(Declined("d")), reject=Declined)

    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_a_group_of_thousands_and_one_that_lies_are_bounded():
    deep: BaseException = ValueError("at the bottom")
    for _ in range(5_000):
        deep = ExceptionGroup("g", [deep])  # type: ignore[list-item]

    class Lies(ExceptionGroup[Exception]):
        @property
        def exceptions(self) -> Any:
            raise RuntimeError

    assert [str(one) for one in leaves(deep)] == ["at the bottom"]
    assert len(leaves(ExceptionGroup("g", [ValueError()] * 5_000))) == LEAVES_MAX
    assert len(named(ExceptionGroup("g", [ValueError("x" * 5_000)] * 5_000))) <= 1_000
    assert raised(Lies("l", [ValueError("v")])).outcomes == ["retried", "accepted"]
