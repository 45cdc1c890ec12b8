"""The table of capabilities: complete, and shown in the docs as it is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from flowshare.backend.base import Capabilities
from flowshare.backend.capabilities import BY_NAME, TABLE, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backends.md"


def test_every_capability_has_a_row():
    assert [row.field for row in TABLE] == [field.name for field in fields(Capabilities)]


def test_the_row_of_native_says_no_exactly_where_native_cannot():
    for row in TABLE:
        assert row.native.startswith("no") is not getattr(BY_NAME["native"], row.field), row.field


def test_the_docs_show_the_table():
    assert render() in PAGE.read_text()
