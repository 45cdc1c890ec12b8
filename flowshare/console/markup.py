"""Templates (Jinja2, everything escaped unless it is markup already) and the display of figures on a page."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from html import unescape
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup as Safe
from markupsafe import escape

from flowshare.agents.handler.texts import age, clip
from flowshare.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.clock import Clock

NOTHING: Final = "–"
NAME_MAX: Final = 1_100
"""The most characters of a name, or of another text in a row, that are shown; a group's name has 1,024 at most."""
LONG_MAX: Final = 16_000
"""The most characters of a text with its own block: a trace, a command, a value in hex."""
HEADERS_MAX: Final = 100
"""The most headers of a record that are shown."""
_CODE: Final = re.compile(r"`([^`\n]+)`")
_ITEM: Final = re.compile(r"<li>", re.IGNORECASE)
_TAG: Final = re.compile(r"</?[a-zA-Z][a-zA-Z0-9]*[^<>]*>")
_STATES: Final = {"HELD": "acquired", "FREE": "available"}
"""Other pages' names for the state of a key's head."""


class Markup:
    """Renders the templates."""

    def __init__(self, clock: Clock) -> None:
        def ago(at_ms: float | None) -> str:
            return told_age(None if at_ms is None else max(0.0, (clock.now_ms() - at_ms) / 1000))

        self._environment = Environment(
            loader=PackageLoader("flowshare.console"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "age": told_age,
            "ago": ago,
            "bare": bare,
            "exact": exact,
            "long": long,
            "number": number,
            "prose": prose,
            "rate": rate,
            "seconds": seconds,
            "state": state,
            "time": time,
            "url": url,
            "yes_no": yes_no,
        }
        cast("dict[str, Any]", self._environment.globals)["mark"] = mark

    def render(self, template: str, context: Mapping[str, Any]) -> str:
        """Return a whole page."""
        return self._environment.get_template(template).render(context)


def shown(value: object) -> object:
    """Return a template's value in its shown form: text up to `NAME_MAX`, marks of direction and other controls as
    their escapes, as in a terminal: they would turn round their neighbours, or look like another name."""
    if isinstance(value, str) and not isinstance(value, Safe):
        return clip(printable(value, lines=True), NAME_MAX)
    return value


def long(text: str) -> Safe:
    """Return a text with its own block in its shown form, up to `LONG_MAX`."""
    return escape(clip(printable(text, lines=True), LONG_MAX))


def exact(text: object) -> Safe:
    """Escape text that a form sends back, to the letter."""
    return escape(text)


def mark(kind: str, *of: object) -> Safe:
    """Return the id of a row, different for each thing: a topic's name has no slash, so a part that may have one stands
    last."""
    text = "/".join(str(one) for one in of)
    if len(text) > NAME_MAX:
        text = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return escape(f"{kind}-{text}")


def told_age(value: float | None) -> str:
    """Return a duration in seconds as text; a dash for None."""
    return NOTHING if value is None else age(value)


def state(name: str) -> str:
    """Return a record's state, in the words of other pages."""
    return _STATES.get(name, name.lower())


def yes_no(value: bool | None) -> str:
    """Return "yes" or "no"; a dash for None."""
    return NOTHING if value is None else "yes" if value else "no"


def number(value: float | None) -> str:
    """Return `12 345`, with narrow spaces that do not break; a dash for None."""
    if value is None or value < 0:
        return NOTHING
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def seconds(value: float | None) -> str:
    """Return a time that passes while the page is open: below a minute without fractions, which would flicker."""
    if value is None:
        return NOTHING
    return f"{int(value)} s" if 0 <= value < 60 else age(value)


def prose(text: str) -> Safe:
    """Return a sentence; text in backticks is set as code."""
    parts = _CODE.split(clip(printable(text, lines=True), LONG_MAX))  # every second one is code
    return Safe("").join(Safe("<code>{}</code>").format(one) if at % 2 else escape(one) for at, one in enumerate(parts))


def bare(text: str) -> str:
    """Return a text of Kafka's brokers, which explain settings in HTML, without the HTML."""
    words = unescape(_TAG.sub("", _ITEM.sub("; ", text)))
    return " ".join(words.split()).replace(" ;", ";").replace(".;", ";").replace(":;", ":")


def rate(value: float | None) -> str:
    """Return a rate."""
    if value is None:
        return NOTHING
    return number(value) if value >= 10 or value == 0 else f"{value:.1f}"


def time(at_ms: int | None) -> str:
    """Return a time in UTC, to the second."""
    if at_ms is None or at_ms < 0:
        return NOTHING
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(at_ms)


def url(path: str, **query: object) -> str:
    """Return an address below the console's root; None values are left out."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"/{path}?{urlencode(given)}" if given else f"/{path}"
