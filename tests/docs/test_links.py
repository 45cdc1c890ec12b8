"""Where pages and docstrings lead: to what is in the repository, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def headings(page: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them of its headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there() -> None:
    dead: list[tuple[str, str]] = []
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", prose, re.MULTILINE):
            file, _, anchor = "".join(link).partition("#")
            if file.startswith("http"):
                continue
            target = page.parent / file if file else page
            if not target.exists() or (anchor and anchor not in headings(target)):
                dead.append((page.name, "".join(link)))

    assert dead == []


def test_every_page_that_the_source_names_is_in_the_repository() -> None:
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in (ROOT / "flowshare").rglob("*.py")
        for page in re.findall(r"[\w./-]+\.md\b", path.read_text(encoding="utf-8"))
    }

    assert sorted((path, page) for path, page in named if not (ROOT / page).is_file()) == []
