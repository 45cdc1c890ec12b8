"""Fixtures that all tests share: the real broker, and the fate of tests that need Java on a machine without Java."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.browser.fixtures import browser
from tests.fleet.processes import fleet
from tests.kafka import fixtures
from tests.kafka.fixtures import each_kafka, kafka, kafka_pair, kafka_with_letters, mortal_pair, unique

__all__ = ["browser", "each_kafka", "fleet", "kafka", "kafka_pair", "kafka_with_letters", "mortal_pair", "unique"]

settings.register_profile("flowshare", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("flowshare")  # no test fails because the machine is busy
_run = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    folder = fixtures.begin_run()
    if folder is not None:
        config.stash[_run] = folder


def pytest_unconfigure(config: pytest.Config) -> None:
    if _run in config.stash:
        fixtures.end_run(config.stash[_run])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    fixtures.mark(items)
    fixtures.longest_first(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    fixtures.begin(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With `-q` nothing else says in which order tests ran that failed."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        seed = config.getoption("randomly_seed", None)
        terminalreporter.write_line(f"the order of the tests: --randomly-seed={seed}")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Put logging back after each test. Commands that run in this process set it up: what they leave would write to a
    later test's closed stream. A configuration disables every logger that it does not name, and sets levels: later
    tests would wait for lines of those in vain."""
    root = logging.getLogger()
    before, level = set(root.handlers), root.level
    levels = {one: (one.level, one.disabled) for one in _loggers()}
    yield
    for logger in _loggers():
        was, disabled = levels.get(logger, (logging.NOTSET, False))
        if logger.level != was:
            logger.setLevel(was)
        logger.disabled = disabled
    for handler in root.handlers[:]:
        if handler not in before and type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def _loggers() -> list[logging.Logger]:
    """All loggers but the root."""
    return [one for one in list(logging.root.manager.loggerDict.values()) if isinstance(one, logging.Logger)]


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Restore signal handlers after a test: code in this process may take signals, as Spark's source does. Otherwise
    processes that a later test starts would inherit an ignored SIGTERM, and not react to the first one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
