"""The rules of docs/share-groups.md and what cites them by number, held to each other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/share-groups.md").read_text()
BODY, NOT_IN_CODE = PAGE.split("## Not in code\n")
RULES = re.findall(r"^\*\*SG-(\d+\.\d+)\*\* ", BODY, re.MULTILINE)
SECTIONS = re.findall(r"^## (\d+)\. ", BODY, re.MULTILINE)
CITED = re.compile(r"\bSG-(\d+(?:\.\d+)?)")


def cited(*folders: str) -> dict[str, list[str]]:
    """Number -> the files that cite it."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()):
        if path.suffix in (".py", ".md", ".csv") and path != Path(__file__):
            for number in CITED.findall(path.read_text(encoding="utf-8")):
                found.setdefault(number, []).append(str(path.relative_to(ROOT)))
    return found


def test_the_rules_of_each_section_are_numbered_in_order_and_without_a_hole() -> None:
    by_section = {section: [rule for rule in RULES if rule.split(".")[0] == section] for section in SECTIONS}

    assert [str(number) for number in range(1, len(SECTIONS) + 1)] == SECTIONS
    for section, rules in by_section.items():
        assert rules == [f"{section}.{number}" for number in range(1, len(rules) + 1)]
    assert [rule for rules in by_section.values() for rule in rules] == RULES


def test_every_cited_number_is_a_rule_or_a_section_of_the_page() -> None:
    known = {*RULES, *SECTIONS}
    by_number = cited("flowshare", "tests", "docs", "benchmarks")

    assert {number: files for number, files in by_number.items() if number not in known} == {}


def test_every_rule_is_cited_in_code_or_listed_as_not_in_code() -> None:
    in_code, listed = set(cited("flowshare")), CITED.findall(NOT_IN_CODE)

    assert [rule for rule in RULES if rule not in in_code and rule not in listed] == []
    assert [rule for rule in listed if rule in in_code or rule not in RULES] == []


def test_every_difference_that_a_rule_names_is_a_row_of_the_differences() -> None:
    rows = re.findall(r"^\| ([a-z-]+) \|", (ROOT / "docs/differences.md").read_text(), re.MULTILINE)
    named = re.findall(r"\[`([a-z-]+)`\]\[d\]", BODY)

    assert len(named) > 20
    assert [name for name in named if name not in rows] == []
