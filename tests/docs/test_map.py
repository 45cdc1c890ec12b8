"""The map (docs/architecture.md and each package's docstring) names what is in the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "flowshare"
MAP = ROOT / "docs" / "architecture.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in SOURCE.rglob("*.py")
}
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
NO_MODULES = {
    "client.wire": {"codec_of"},
    "agents.host": {"on_leader"},
    "agents.faust": {"app.producer"},
    "agents.run": {"concurrency", "def"},
    "backend": {"open_backend"},
    "cli": {"flowshare"},
    "console": {"audit", "templates"},
    "console.pages": {"templates"},
    "share": {"now_ms"},
    "testing": {"flowshare"},
}
"""Names that packages' entries contain and that are no modules: functions, words of options."""


def lies_in(name: str, folders: list[Path]) -> bool:
    return any((folder / name).exists() for folder in folders)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_source_file_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)(?:::\w+)?`", page.read_text())
    missing = [name for name in named if not lies_in(name, [ROOT, SOURCE, ROOT / "tests"])]

    assert [name for name in missing if name not in BESIDE.get(page.name, ())] == []


BESIDE = {"operations.md": ("workers/",)}
"""Folders that a page names and that are not of the source: those of an embedded path."""


def test_every_room_of_the_layers_is_there_and_every_package_is_in_them() -> None:
    layers = MAP.read_text().split("## Layers")[1].split("```")[1]
    words = set(re.findall(r"\b[a-z]+\b", layers))
    packages = {name for name in MODULES if name and "." not in name and (SOURCE / name).is_dir()}

    assert packages - words == set()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_that_a_package_names_is_there(package: Path) -> None:
    own = ".".join(package.relative_to(SOURCE).parts)
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    named = set(re.findall(r"`(?:flowshare\.)?([a-z_]+(?:\.[a-z_]+)*)\*?`", text)) - NO_MODULES.get(own, set())
    around = [f"{own}.", f"{own.rpartition('.')[0]}.", ""]

    assert {name for name in named if not any((above + name).strip(".") in MODULES for above in around)} == set()


def test_every_source_file_that_the_source_names_is_there() -> None:
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"`?\b((?:[a-z_]+/)+[a-z_]+\.py|(?<=`)[a-z_]+\.py(?=`))", path.read_text())
    }

    around = [ROOT, SOURCE, ROOT / "tests"]
    assert sorted(one for one in named if not lies_in(one[1], [*around, (ROOT / one[0]).parent])) == []
