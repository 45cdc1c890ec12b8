"""Docstrings begin with the thing or the deed that they are about."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("flowshare", "tests", "benchmarks", "examples")
DARK = ("What", "Whether")
"""A sentence that begins so has no subject: who reads it has to guess the thing that it is about."""


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of all docstrings, those below constants and attributes included."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else []:
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, one.value.value


def _dark(text: str) -> list[int]:
    return [line for line, said in _docstrings(text) if said.split(maxsplit=1)[:1] and said.split()[0] in DARK]


def test_a_docstring_without_a_subject_is_found() -> None:
    assert _dark('"""A module."""\nX = 1\n"""What it is."""\ndef f():\n    """Whether."""\n    """Whatever."""') == [3]
    assert _dark('def f():\n    """Whether it is."""') == [2]


@pytest.mark.slow
def test_no_docstring_begins_with_what_or_whether() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in _dark(path.read_text())]

    assert not found, f"say what the thing is or does, subject or verb first: {', '.join(found)}"
