"""Names of the public API that the pages use."""

from __future__ import annotations

import re
from pathlib import Path

import flowshare as fs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_public_name_that_a_page_uses_exists() -> None:
    missing: list[tuple[str, str]] = []
    for page in PAGES:
        for name in sorted(set(re.findall(r"\bfs((?:\.\w+)+)", page.read_text()))):
            found: object = fs
            for part in name.split(".")[1:]:
                found = getattr(found, part, None)
            if found is None:
                missing.append((page.name, name))

    assert missing == []


def test_the_page_of_names_names_all_that_an_app_and_a_client_are_made_of() -> None:
    named = set(re.findall(r"\bfs\.(\w+)", (ROOT / "docs/names.md").read_text()))

    assert {"App", "Batch", "Broker", "Delivery", "Reject", "Release", "Retry", "Send", "ConsumerSettings"} <= named
