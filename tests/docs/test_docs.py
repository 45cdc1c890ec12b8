"""Every code block of README and docs is run as a reader would run it, in a directory of its own."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import click
import pytest

from flowshare.share.state import TRANSITIONS

ROOT = Path(__file__).resolve().parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BIN = Path(sys.executable).parent
LIMIT_S = 110.0


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def lay_out(page: Path, folder: Path) -> list[Path]:
    """Write the Python blocks into files: one that begins with `# name.py` into that, the others into one."""
    files: dict[str, str] = {}
    for block in blocks(page.read_text(), "python"):
        named = re.match(r"# (\w+\.py)\n", block)
        name = named[1] if named else f"test_{page.stem.lower()}.py"
        files[name] = files.get(name, "") + block.replace("/tmp/", f"{folder}/") + "\n\n"
    for name, source in files.items():
        (folder / name).write_text(source)
    return [folder / name for name in files]


def command(line: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / "flowshare"), *shlex.split(line)[1:]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def run_command(line: str, folder: Path) -> None:
    done = command(line, folder)
    output, _ = done.communicate(timeout=LIMIT_S)
    assert done.returncode == 0, f"{line}\n{output}"


def run_worker(line: str, folder: Path, until: str) -> str:
    """Start a worker, wait for a text in its output, stop it in order; returns its output."""
    worker = command(line, folder)
    assert worker.stdout is not None
    seen = ""
    guard = threading.Timer(LIMIT_S, worker.kill)
    guard.start()
    try:
        for out in worker.stdout:
            seen += out
            if until in seen:
                break
        worker.send_signal(signal.SIGTERM)
        seen += worker.communicate(timeout=LIMIT_S)[0]
    finally:
        guard.cancel()
        worker.kill()
        worker.communicate()
    assert worker.returncode == 0, seen
    return seen


PAGES_WITH_PYTHON = [page for page in DOCS if blocks(page.read_text(), "python")]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_PYTHON, ids=lambda page: page.stem)
def test_the_python_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    files = lay_out(page, tmp_path)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-W", "ignore", *map(str, files)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )

    has_tests = any("def test_" in file.read_text() for file in files)
    assert done.returncode == (0 if has_tests else 5), done.stdout + done.stderr  # 5: imported, and no tests in it


def run_script(source: str, folder: Path) -> list[str]:
    """Run a script beside the files of a page; returns the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_an_order_goes_through_all_agents_of_the_agents_page_into_the_table(tmp_path: Path) -> None:
    lay_out(ROOT / "docs/agents.md", tmp_path)

    printed = run_script(
        """
        import asyncio, test_agents as page

        async def main():
            async with page.app.running(), asyncio.timeout(90):
                await page.orders.send(key="1", value=page.Order("1", "ann", 5.0))
                while not page.revenue["ann"]:
                    await asyncio.sleep(0.05)
                shipped = []
                while not shipped:
                    admin = page.app.host.admin
                    shipped = await page.app.host.service.call(lambda: admin.read("orders.shipped", 0))
                print(dict(page.revenue.items()), shipped[0].key)

        asyncio.run(main())
        """,
        tmp_path,
    )

    assert printed == ["{'ann': 1} b'ann'"]


@pytest.mark.slow
def test_the_fence_of_the_agents_page_keeps_no_delivery_out_and_its_points_are_given_once(tmp_path: Path) -> None:
    """Its handlers are `def`s: many run at a time, on threads."""
    lay_out(ROOT / "docs/agents.md", tmp_path)

    printed = run_script(
        """
        import asyncio, test_agents as page

        CUSTOMERS, ORDERS = 16, 30

        async def main():
            paid = page.app.topic("orders.paid", key_type=str, value_type=page.Order)
            async with page.app.running(), asyncio.timeout(90):
                for number in range(ORDERS):
                    await asyncio.gather(
                        *(paid.send(key=f"c{n}", value=page.Order(str(number), f"c{n}", 5.0)) for n in range(CUSTOMERS))
                    )
                admin = page.app.host.admin
                dead = 0
                for group in (page.app.share_agents[name].group for name in ("note", "give_points")):
                    while (await page.app.host.service.call(lambda: admin.group_offsets(group)))[0].lag:
                        await asyncio.sleep(0.05)
                    topics = await page.app.host.service.call(admin.list_topics)
                    for topic in (one.name for one in topics if one.name == group + ".dlq"):
                        dead += (await page.app.host.service.call(lambda: admin.offsets(topic, 0))).high_watermark
            with page.customers() as db:
                print(dead, db.execute("SELECT count(*), min(last_order), max(last_order) FROM customer").fetchone())
            with page.shop() as db:
                print(db.execute("SELECT count(*), min(total), max(total) FROM points").fetchone())

        asyncio.run(main())
        """,
        tmp_path,
    )

    assert printed == ["0 (16, '29', '29')", "(16, 150.0, 150.0)"]


@pytest.mark.slow
def test_the_clients_page_runs_twice_and_leaves_nothing_unaccepted(tmp_path: Path) -> None:
    lay_out(ROOT / "docs/clients.md", tmp_path)

    for _ in range(2):
        (printed,) = run_script("import runpy; runpy.run_module('test_clients_page', run_name='__main__')", tmp_path)
        assert sorted(ast.literal_eval(printed)) == [b"one", b"three", b"two"]


@pytest.mark.slow
def test_the_blocking_client_of_the_clients_page_reads_on_where_it_ended(tmp_path: Path) -> None:
    lay_out(ROOT / "docs/clients.md", tmp_path)

    printed = run_script(
        f"""
        import asyncio, blocking, flowshare as fs
        url = "embedded://{tmp_path}/log"

        async def send(*values):
            async with fs.Broker(url) as broker:
                await fs.ShareAdmin(broker).alter_group_configs("report", {{"share.auto.offset.reset": "earliest"}})
                await fs.Producer(broker).send_many("orders", values)

        for values in ((b"a", b"b"), (b"c",)):
            asyncio.run(send(*values))
            print(blocking.first_values(url, len(values)))
        """,
        tmp_path,
    )

    assert printed == ["[b'a', b'b']", "[b'c']"]


def test_pages_do_not_share_a_place_where_they_keep_their_log() -> None:
    places = [(path, page.name) for page in DOCS for path in set(re.findall(r"embedded:///tmp/[\w-]+", _python(page)))]

    assert len({path for path, _ in places}) == len(places), places


def _python(page: Path) -> str:
    return "".join(blocks(page.read_text(), "python"))


@pytest.mark.slow
def test_the_first_screen_of_the_readme_greets_the_world(tmp_path: Path) -> None:
    lay_out(ROOT / "README.md", tmp_path)
    send, worker = blocks((ROOT / "README.md").read_text(), "sh")[0].splitlines()

    run_command(send, tmp_path)
    seen = run_worker(worker, tmp_path, until="Hello, world!")

    assert "Hello, world!" in seen


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_operations_page_work(tmp_path: Path) -> None:
    lay_out(ROOT / "README.md", tmp_path)
    lines = [line for block in blocks((ROOT / "docs/operations.md").read_text(), "sh") for line in block.splitlines()]
    for line in lines:
        if line.startswith("flowshare worker"):
            run_command("flowshare send greetings world --app app:app", tmp_path)
            run_worker(line.replace("8081", "0"), tmp_path, until="Hello, world!")
            continue
        run_command(line, tmp_path)


def test_every_test_that_the_security_page_names_is_there() -> None:
    named = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", (ROOT / "docs" / "security.md").read_text())

    assert len(named) >= 20
    missing = [name for file, name in named if f"def {name}(" not in (ROOT / "tests" / file).read_text()]
    assert missing == []


def test_every_make_target_that_a_page_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()

    for page in DOCS:
        for target in re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} names make {target}"


def test_the_state_diagram_is_the_one_of_the_table() -> None:
    assert diagram() in (ROOT / "docs/architecture.md").read_text()


def diagram() -> str:
    """The table of a record's states as Mermaid draws it; the two rules that follow it are moves of their own."""
    lines = ["stateDiagram-v2", "    [*] --> AVAILABLE"]
    for state, moves in TRANSITIONS.items():
        lines += [f"    {state.name} --> {target.name}: {event.value}" for event, target in moves.items()]
    lines += [
        "    ACQUIRED --> ARCHIVED: release or lapse at the delivery limit",
        "    ACQUIRED --> ARCHIVING: the same, or reject, with a dead letter to write",
    ]
    lines += [f"    {state.name} --> [*]" for state in TRANSITIONS if state.terminal]
    return "\n".join(lines) + "\n"


def calls(text: str) -> list[tuple[str, bool]]:
    """Return the calls of flowshare in `sh` blocks and indented ones (True), and commands that a sentence only names
    (False)."""
    whole = [line for block in blocks(text, "sh") for line in block.replace("\\\n", " ").splitlines()]
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = "\n".join(re.findall(r"^ {4}(\S.*)$", outside, re.MULTILINE)).replace("\\\n", " ")
    named = re.findall(r"`([^`]+)`", re.sub(r"^ {4}.*$", "", outside, flags=re.MULTILINE))
    found = {" ".join(line.split()): True for line in [*whole, *indented.splitlines()]}
    found = {**{" ".join(line.split()): False for line in named}, **found}
    return [(line, runs) for line, runs in found.items() if line.startswith("flowshare ")]


def found_command(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that words name, its context, and the words behind it."""
    from flowshare.cli import cli

    command, context = cli, click.Context(cli, info_name="flowshare")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    return command, context, words


COMMANDS = [(page.name, *call) for page in DOCS for call in calls(page.read_text())]


def test_the_pages_name_many_commands() -> None:
    assert len(COMMANDS) > 60
    assert sum(runs for _, _, runs in COMMANDS) > 20


@pytest.mark.parametrize(("page", "line", "runs"), COMMANDS, ids=[f"{page}: {line}" for page, line, _ in COMMANDS])
def test_every_command_that_a_page_names_is_there_with_its_options(page: str, line: str, runs: bool) -> None:
    words = line.removesuffix(" …").replace("…", "X").split(" | ")[0].split(" # ")[0]
    command, context, left = found_command(shlex.split(words)[1:])
    if runs:
        command.parse_args(context, left)
    options = {word.split("=")[0] for word in left if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", word)}
    assert options <= {"--help", *(name for one in command.params for name in (*one.opts, *one.secondary_opts))}
