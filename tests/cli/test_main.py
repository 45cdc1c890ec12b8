"""The command line as a whole: help, usage errors, imports."""

import subprocess
import sys
from pathlib import Path

import pytest

from flowshare.cli import COMMANDS, main


def run(args, capsys):
    with pytest.raises(SystemExit) as stop:
        main(args)
    return stop.value.code, *capsys.readouterr()


def test_help_lists_every_command(capsys):
    code, out, _ = run(["--help"], capsys)

    assert code == 0
    assert all(f"  {name} " in out for name in COMMANDS)


def test_a_mistyped_command_names_the_nearest(capsys):
    code, _, err = run(["topcs", "ls"], capsys)

    assert code == 2
    assert "did you mean topics?" in err


def test_a_command_without_a_broker_says_how_to_give_one(capsys, monkeypatch):
    monkeypatch.delenv("FLOWSHARE_BROKER", raising=False)

    code, _, err = run(["topics", "ls"], capsys)

    assert code == 2
    assert "--broker embedded:///path" in err


def test_an_app_that_cannot_be_loaded_is_one_line_and_code_1(capsys):
    code, _, err = run(["inflight", "no_such_module_here:app"], capsys)

    assert code == 1
    assert err.count("\n") == 1
    assert "no_such_module_here" in err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name, capsys):
    code, out, _ = run([name, "--help"], capsys)

    assert code == 0
    assert "usage: flowshare" in out.lower()


@pytest.mark.slow
def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from flowshare.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'faust', 'aiokafka', 'kio', 'aiohttp', 'rich', 'rocksdict', 'uvloop', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_an_interpreter_without_assertions_is_refused():
    code = "from flowshare.cli import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-O", "-c", code], check=False, capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "does not run under python -O" in done.stderr


@pytest.mark.slow
def test_a_host_is_refused_without_assertions_too():
    code = (
        "import asyncio, flowshare as fs\n"
        "from flowshare.agents.host.host import Host\n"
        "app = fs.App('shop', broker='memory://')\n"
        "asyncio.run(Host(app).start())\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], check=False, capture_output=True, text=True)

    assert done.returncode == 1
    assert "UsageError: flowshare does not run under python -O" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", ["flowshare.cli", "click", "flowshare.cli.output", "flowshare.cli.topics"])
def test_ctrl_c_while_the_command_is_imported_is_one_word_and_code_130(module):
    code = f"""
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests in the background may have it ignored


class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Interrupting())
sys.argv = ["flowshare", "topics", "--help"]
from flowshare.entry import main

main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr.split()) == (130, ["interrupted"])


def test_the_command_begins_where_an_interrupt_is_answered():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()

    assert 'flowshare = "flowshare.entry:main"' in text


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_does_its_work(tmp_path: Path, closed: str):
    """The file of the store that is opened next would get the free descriptor, and be written into."""
    broker = f"embedded://{tmp_path}/shop"

    def run(words: str) -> subprocess.CompletedProcess[bytes]:
        command = f"exec {sys.executable} -m flowshare.cli {words} --broker {broker}"
        return subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)

    done = [run(f"{words} {closed}") for words in ("topics create orders", "send orders hello", "lag", "topics ls")]

    assert [one.returncode for one in done] == [0, 0, 0, 0]
    assert "orders" in run("topics ls").stdout.decode()
