"""The program in `go/`: a client on franz-go, compiled once for each of its contents.

It is skipped without a Go that is new enough, or where its modules cannot be fetched, in CI as well: a machine there
promises Python, Java, Maven and a C compiler, and no Go.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.toolbox import ANSWER_LIMIT_S, COMPILE_LIMIT_S, Told, compiled

SOURCE = Path(__file__).with_name("go")
NO_GO = "there is no Go (golang.org), which no machine has to have, in CI neither"


def program() -> Path:
    """The program. Skips the test without what it is made of."""
    go = shutil.which("go")
    if go is None:
        pytest.skip(NO_GO)
    fetched = subprocess.run(
        [go, "mod", "download"], cwd=SOURCE, capture_output=True, text=True, check=False, timeout=COMPILE_LIMIT_S
    )
    if fetched.returncode != 0:
        pytest.skip(f"this Go is too old, or cannot fetch franz-go: {fetched.stderr.strip()}")
    content = b"".join((SOURCE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))

    def command(target: Path) -> list[str]:
        return [go, "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-o", str(target / "franz"), "."]

    return compiled("interop-go", content, command, SOURCE) / "franz"


def run(franz: Path, bootstrap: str, do: str, *words: str) -> Told:
    """Run it to its end, which has to be a good one."""
    command = [str(franz), f"bootstrap={bootstrap}", f"do={do}", *words]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=ANSWER_LIMIT_S
    )
    assert done.returncode == 0, f"{os.fspath(franz)} {do} {' '.join(words)} failed:\n{done.stdout}\n{done.stderr}"
    return Told(done.returncode, done.stdout, done.stderr)
