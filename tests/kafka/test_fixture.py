"""The fixtures themselves."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flowshare.dev.probe import nodes_seen
from flowshare.dev.processes import process
from tests.kafka.fixtures import NAMED, ROOT, RUN
from tests.waiting import blocking_until


def test_the_broker_answers(kafka):
    host, port = kafka.addresses[0].rsplit(":", 1)

    assert nodes_seen(host, int(port)) >= 1


def test_the_pair_knows_each_other(kafka_pair):
    assert len(kafka_pair.addresses) == 2
    assert kafka_pair.answers


def inner(folder: Path, source: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a test file with the conftest of all tests, as a run of its own."""
    (folder / "test_inner.py").write_text(textwrap.dedent(source))
    (folder / "conftest.py").write_text(
        "from tests.conftest import *\nfrom tests.conftest import (pytest_configure, "
        "pytest_unconfigure, pytest_collection_modifyitems, pytest_runtest_setup)\n"
    )
    ours = {RUN, NAMED, "CI", "PYTEST_ADDOPTS"}
    environment = {
        name: value for name, value in os.environ.items() if name not in ours and not name.startswith("PYTEST_XDIST")
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}",
            "-p", "no:cacheprovider", *args, str(folder)],
        cwd=ROOT, env={**environment, **variables}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


NEEDS_JAVA = """
    import pytest

    @pytest.mark.java
    def test_that_needs_java():
        raise AssertionError("it ran")
"""


@pytest.mark.slow
def test_without_java_a_test_that_needs_it_is_skipped_on_a_laptop(tmp_path):
    done = inner(tmp_path, NEEDS_JAVA, PATH=str(tmp_path), JAVA_HOME="")

    assert done.returncode == 0, done.stdout
    assert "there is no Java" in done.stdout
    assert "1 skipped" in done.stdout


@pytest.mark.slow
def test_without_java_a_test_that_needs_it_fails_in_ci(tmp_path):
    done = inner(tmp_path, NEEDS_JAVA, PATH=str(tmp_path), JAVA_HOME="", CI="true")

    assert done.returncode == 1, done.stdout
    assert "there is no Java" in done.stdout
    assert "in CI nothing is skipped" in done.stdout


USES_KAFKA = """
    import os, pathlib, pytest

    @pytest.mark.parametrize("number", range(4))
    def test_that_uses_the_broker(kafka, number):
        with pathlib.Path(os.environ["SEEN"]).open("a") as seen:
            seen.write(f"{os.getpid()} {kafka.bootstrap} {kafka.processes[0].pid if kafka.processes else 0}\\n")
"""


@pytest.mark.slow
def test_a_named_broker_is_taken(tmp_path):
    done = inner(tmp_path, USES_KAFKA, SEEN=str(tmp_path / "seen"), **{NAMED: "127.0.0.1:1"})

    assert done.returncode == 0, done.stdout
    assert {line.split()[1] for line in (tmp_path / "seen").read_text().splitlines()} == {"127.0.0.1:1"}


@pytest.mark.slow
def test_the_fast_suite_starts_no_broker(tmp_path):
    done = inner(tmp_path, USES_KAFKA, "-m", "not slow", SEEN=str(tmp_path / "seen"))

    assert "4 deselected" in done.stdout
    assert not (tmp_path / "seen").exists()


@pytest.mark.java
@pytest.mark.slow
def test_workers_share_one_broker_and_it_ends_with_the_run(tmp_path):
    done = inner(tmp_path, USES_KAFKA, "-n2", SEEN=str(tmp_path / "seen"))

    assert done.returncode == 0, done.stdout
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len({worker for worker, _, _ in seen}) == 2
    assert len({broker for _, broker, _ in seen}) == 1
    assert process(int(seen[0][2])) is None
    host, port = seen[0][1].rsplit(":", 1)
    assert nodes_seen(host, int(port)) == 0


@pytest.mark.java
@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_broker_behind(tmp_path):
    source = """
        import os, pathlib, signal

        def test_that_is_killed(kafka):
            pathlib.Path(os.environ["SEEN"]).write_text(kafka.bootstrap)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = inner(tmp_path, source, SEEN=str(tmp_path / "seen"))

    assert done.returncode == -signal.SIGKILL
    host, port = (tmp_path / "seen").read_text().rsplit(":", 1)
    blocking_until(lambda: nodes_seen(host, int(port)), good=lambda seen: seen == 0, look_s=0.05)


@pytest.mark.slow
def test_a_test_that_takes_a_broker_without_saying_so_is_told_the_marker(tmp_path):
    source = """
        def test_that_says_nothing(request):
            request.getfixturevalue("kafka_pair")
    """
    done = inner(tmp_path, source)

    assert done.returncode == 1
    assert "a test that runs on a real broker has the marker `real`" in done.stdout
