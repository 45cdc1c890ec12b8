"""The fixture `server`: a test that takes it runs against all servers that can do what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.servers import FlowshareProcess, Server
from tests.interop.toolbox import Told, Toolbox

HERE = Path(__file__).parent
BOTH = [pytest.param("kafka", marks=pytest.mark.real), "flowshare"]
BY_WORKERS_TOO = frozenset({"test_java_share", "test_confluent_share", "test_share_tools"})
"""Modules about share groups alone: all that workers have."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(func_only=True))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        workers = [pytest.param("workers", marks=pytest.mark.java)] if module in BY_WORKERS_TOO else []
        metafunc.parametrize("server", [*BOTH, *workers], indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "kafka":
        yield Server("kafka", request.getfixturevalue("kafka").bootstrap)
    elif request.param == "workers":
        fleet = request.getfixturevalue("fleet")
        yield Server("workers", fleet.bootstrap, records=fleet.kafka.bootstrap)
    else:
        process = FlowshareProcess(tmp_path_factory.mktemp("serve"))
        try:
            process.start()
            yield process.server
        finally:
            process.stop()


@pytest.fixture(scope="session")
def toolbox() -> Iterator[Toolbox]:
    box = Toolbox()
    yield box
    box.close()


@pytest.fixture
def run(server: Server, toolbox: Toolbox) -> Callable[..., Told]:
    """Run a tool against the server; it has to end with `code` (None: with any)."""

    def call(tool: str, *args: str, stdin: str = "", code: int | None = 0) -> Told:
        where = (
            (f"bootstrap={server.bootstrap}",) if tool.endswith("-client") else ("--bootstrap-server", server.bootstrap)
        )
        told = toolbox(tool, *where, *args, stdin=stdin)
        assert code is None or told.code == code, (
            f"{tool} {' '.join(args)} ended with {told.code}:\n{told.out}\n{told.err}"
        )
        return told

    return call
