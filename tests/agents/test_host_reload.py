"""Tests of reloading: which changes of the app's files count, and what follows a change."""

import signal
import subprocess
import sys

import pytest

from flowshare.agents.worker.reload import changed, scan
from tests.waiting import blocking_until

WORKER = """
import os, signal, sys, time
def note(word):
    with open("journal", "a") as file:
        file.write(f"{word}\\n")
def end(*_):
    note("drained")
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
note("up")
if os.path.exists("broken"):
    sys.exit(5)
while True:
    time.sleep(0.05)
"""
RELOADER = """
import pathlib, sys
from flowshare.agents.worker.reload import run_reloading
sys.exit(run_reloading([sys.executable, "worker.py"], root=pathlib.Path.cwd(), drain_timeout_s=20.0))
"""


def test_a_new_a_changed_and_a_removed_file_are_found(tmp_path):
    kept, edited, removed = (tmp_path / name for name in ("kept.py", "edited.py", "removed.py"))
    for path in (kept, edited, removed):
        path.write_text("x = 1\n")
    before = scan(tmp_path)

    edited.write_text("x = 10\n")
    removed.unlink()
    (tmp_path / "new.py").write_text("")

    assert changed(before, scan(tmp_path)) == sorted(
        str(tmp_path / name) for name in ("edited.py", "new.py", "removed.py")
    )


def test_hidden_and_installed_folders_and_other_files_are_left_out(tmp_path):
    for folder in (".venv", "__pycache__", "node_modules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("")
    (tmp_path / "data.csv").write_text("")
    (tmp_path / "app.py").write_text("")

    assert list(scan(tmp_path)) == [str(tmp_path / "app.py")]


@pytest.mark.slow
def test_a_worker_drains_at_a_change_and_at_a_stop_and_starts_again_when_it_had_ended_by_itself(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    journal = tmp_path / "journal"

    def noted(*words):
        blocking_until(lambda: journal.exists() and journal.read_text().split() == list(words))

    reloader = subprocess.Popen([sys.executable, "-c", RELOADER], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    noted("up")
    (tmp_path / "broken").touch()
    (tmp_path / "new.py").write_text("")
    noted("up", "drained", "up")
    for line in reloader.stderr:
        if "ended with code 5" in line:
            break
    (tmp_path / "broken").unlink()
    (tmp_path / "new.py").unlink()
    noted("up", "drained", "up", "up")
    reloader.send_signal(signal.SIGTERM)

    assert reloader.wait(60) == 3
    noted("up", "drained", "up", "up", "drained")
    reloader.stderr.close()
