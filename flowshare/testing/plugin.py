"""The pytest plugin that comes with flowshare: `@pytest.mark.flowshare` runs an async test on a virtual loop.

Pytest loads the plugin through its entry point, so the module imports nothing heavy.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "flowshare: run this async test on an event loop with virtual time")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Wrap marked async tests, so that other plugins need not know the marker."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("flowshare"):
            if not inspect.iscoroutinefunction(item.obj):
                raise pytest.UsageError(f"{item.nodeid}: the marker `flowshare` is for async tests")
            item.obj = _on_virtual_loop(item.obj)


def _on_virtual_loop(test: Callable[..., Any]) -> Any:
    def run_it(*args: Any, **kwargs: Any) -> None:
        from flowshare.testing.virtual import run

        run(test(*args, **kwargs))

    functools.update_wrapper(run_it, test)
    wrapped: Any = run_it
    del wrapped.__wrapped__  # pytest would see the coroutine function through it
    wrapped.__signature__ = inspect.signature(test)  # but it must see the fixtures
    return wrapped
