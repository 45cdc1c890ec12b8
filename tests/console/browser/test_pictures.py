"""`make console-shots` takes the pictures that the page of the console shows."""

from __future__ import annotations

import re

import pytest

from tests.browser.pages import Browser, on_its_loop
from tests.console.browser.pictures import BYTES_MAX, STATES, take
from tests.kafka.fixtures import ROOT


@on_its_loop
@pytest.mark.timeout(300)
async def test_the_pictures_of_the_page_can_be_taken_and_are_small(browser: Browser, tmp_path):
    files = await take(tmp_path, browser)

    assert [file.stem for file in files] == list(STATES)
    assert [file.name for file in files if not file.read_bytes().startswith(b"\x89PNG")] == []
    assert [file.name for file in files if file.stat().st_size > BYTES_MAX] == []


def test_the_page_shows_each_picture_and_each_is_there():
    shown = re.findall(r"\(console/(\w+)\.png\)", (ROOT / "docs" / "console.md").read_text())

    assert sorted(shown) == sorted(STATES)
    assert [name for name in shown if not (ROOT / "docs" / "console" / f"{name}.png").is_file()] == []
