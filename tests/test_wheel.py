"""Tests of the content of the wheel that is built from this tree."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flowshare.version import __version__

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_wheel_carries_all_of_the_package_and_says_that_it_is_typed(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = tmp_path.glob("*.whl")

    assert wheel.name.startswith(f"flowshare-{__version__}-")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        [metadata] = [name for name in names if name.endswith("entry_points.txt")]
        entry_points = opened.read(metadata).decode()

    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "flowshare").rglob("*.py")}
    assert "flowshare/py.typed" in names
    assert sources <= names
    assert not [name for name in names if "flights" in name]  # the demo is an example
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"flowshare"}
    assert "flowshare = flowshare.entry:main" in entry_points
