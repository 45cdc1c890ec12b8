"""Tests of type checkers on an app: mistakes are found before it runs, and right code has no complaints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
APP = """
from dataclasses import dataclass

import flowshare as fs


@dataclass
class Order:
    id: int


app = fs.App("typed", broker="memory://")
orders = app.topic("orders", value_type=Order)
free = app.topic("free")


async def main() -> None:
    await orders.send(value=Order(1), key="c1")
    await orders.send(value=None)
    await free.send(value={"any": "thing"})
    await orders.send(value=5)  # wrong


@app.share_agent(orders, concurrency=5, retry=fs.Retry(3), timeout=10)
async def good(value: Order) -> None: ...


@app.share_agent(orders, concurency=5)  # wrong
async def bad(value: Order) -> None: ...
"""
WRONG = [number for number, line in enumerate(APP.splitlines(), 1) if line.endswith("# wrong")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", [["mypy", "--no-error-summary"], ["basedpyright", "--level", "error"]])
def test_a_wrong_value_and_a_misspelt_option_are_the_only_errors(checker: list[str], tmp_path: Path) -> None:
    app = tmp_path / "typed_app.py"
    app.write_text(APP)

    done = subprocess.run([BIN / checker[0], *checker[1:], app], cwd=ROOT, capture_output=True, text=True, check=False)

    found = [line for line in done.stdout.splitlines() if "error" in line and "typed_app.py:" in line]
    assert sorted({int(line.split("typed_app.py:")[1].split(":")[0]) for line in found}) == WRONG, done.stdout
