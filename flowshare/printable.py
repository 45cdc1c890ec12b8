"""Text from outside, made safe to show: names, ids, header keys and errors' texts are whatever a client sends.

A terminal obeys what it is shown: escape sequences move the cursor, rewrite lines that were there and set the title,
marks of direction (bidi) turn text round, a line feed begins a log line that nobody wrote. So whatever is shown goes
through here: log lines (`cli.logs`), what commands print (`cli.output`), the stacks of SIGUSR1. What cannot be seen
becomes its escape as Python writes it, `\\x1b` or `\\u202e`, and can still be searched for.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Final

SEEN: Final = frozenset("\t\u200c\u200d")
"""Kept although they are control or format characters: tabs, and what joins letters and emoji or keeps them apart."""
HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of controls, formats (bidi among them), half surrogates, separators of lines."""


def printable(text: str, *, lines: bool = False) -> str:
    """The text without anything that a terminal obeys. lines: it may have several lines."""
    if text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(char.encode("unicode_escape").decode() if _hidden(char) and char != kept else char for char in text)


def one_block(text: str) -> str:
    """The text with all lines but the first set in, so that none of them looks like one of another origin."""
    return printable(text, lines=True).replace("\n", "\n  ")


def printable_json(text: str) -> str:
    """A JSON text with what is hidden in its strings escaped: it means the same. Its own line feeds stay."""
    if text.isprintable():
        return text
    return "".join(json.dumps(char)[1:-1] if _hidden(char) and char != "\n" else char for char in text)


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in HIDDEN and char not in SEEN
