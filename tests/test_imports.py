"""The import graph of the whole package, imports for type checkers included, has no large circles."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import flowshare

ROOT = Path(flowshare.__file__).parent
CIRCLE_MAX = 9
"""Modules of the largest circle; those that are left are one job each, told apart by file."""

Graph = dict[str, set[str]]


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("flowshare", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by dots"
            for one in node.names:
                full = f"{node.module}.{one.name}"
                if (name := full if full in modules else node.module) in modules:
                    yield str(name)


def _graph() -> Graph:
    modules = _modules()
    return {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that all reach each other, the largest first (Kosaraju's algorithm)."""
    order: list[str] = []
    _visit_all(graph, graph, order)
    back: Graph = {name: set() for name in graph}
    for name, others in graph.items():
        for other in others:
            back[other].add(name)
    found = _visit_all(back, reversed(order), [])
    return sorted((sorted(one) for one in found if len(one) > 1), key=len, reverse=True)


def _visit_all(graph: Graph, starts: Iterable[str], finished: list[str]) -> list[list[str]]:
    """Visit depth first from each start in turn; modules by start, and `finished` in the order in which they end."""
    seen: set[str] = set()
    found = []
    for start in list(starts):
        if start in seen:
            continue
        seen.add(start)
        reached, stack = [start], [(start, iter(sorted(graph[start])))]
        while stack:
            name, others = stack[-1]
            other = next((one for one in others if one not in seen), None)
            if other is None:
                finished.append(name)
                stack.pop()
                continue
            seen.add(other)
            reached.append(other)
            stack.append((other, iter(sorted(graph[other]))))
        found.append(reached)
    return found


def test_circles_are_found() -> None:
    graph: Graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}

    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]


@pytest.mark.slow
def test_no_circle_of_imports_is_larger_than_the_largest_that_is_left() -> None:
    largest = circles(_graph())[0]

    assert len(largest) <= CIRCLE_MAX, f"{len(largest)} modules import each other: {', '.join(largest)}"


@pytest.mark.slow
def test_the_root_of_errors_and_the_version_import_nothing() -> None:
    graph = _graph()

    assert graph["flowshare.core_errors"] == graph["flowshare.version"] == set()
