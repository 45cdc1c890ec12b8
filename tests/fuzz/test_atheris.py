"""The coverage-guided target runs and finds nothing in a thousand inputs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = 1_000


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this Python")
def test_a_thousand_inputs_find_nothing(tmp_path):
    script = Path(__file__).with_name("fuzz_requests.py")
    done = subprocess.run(
        [sys.executable, str(script), f"-runs={RUNS}", "-seed=1", str(tmp_path / "corpus")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert f"Done {RUNS} runs" in done.stderr
