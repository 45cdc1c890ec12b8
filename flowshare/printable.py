"""Text from outside, made safe to show: clients choose names, ids, header keys and errors' texts.

A terminal obeys its input: escape sequences move the cursor, rewrite lines that were there and set the title, marks of
direction (bidi) turn text round, a line feed begins a false log line. So all shown text goes through here: log lines
(`cli.logs`), commands' output (`cli.output`), the stacks of SIGUSR1. Invisible characters become their escapes as
Python writes them, `\x1b` or `\u202e`, and can still be searched for.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Final

SEEN: Final = frozenset("\t\u200c\u200d")
"""Control and format characters that are kept: tabs, and joiners or separators of letters and emoji."""
HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of controls, formats (bidi among them), half surrogates, separators of lines."""


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text without anything that a terminal obeys. lines: True: it may have several lines."""
    if text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(char.encode("unicode_escape").decode() if _hidden(char) and char != kept else char for char in text)


def one_block(text: str) -> str:
    """Return the text with all lines but the first indented, so that none of them looks like one of another origin."""
    return printable(text, lines=True).replace("\n", "\n  ")


def printable_json(text: str) -> str:
    """Return a JSON text with hidden characters in its strings escaped: it means the same. Its own line feeds stay."""
    if text.isprintable():
        return text
    return "".join(json.dumps(char)[1:-1] if _hidden(char) and char != "\n" else char for char in text)


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in HIDDEN and char not in SEEN
