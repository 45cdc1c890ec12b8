"""Durations as JSON has them: ISO 8601 (`P1DT2H3M4.5S`), as pydantic and msgspec write them."""

from __future__ import annotations

import datetime
import re
from typing import Final

_FORM: Final = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?:(?P<hours>\d{1,12})H)?(?:(?P<minutes>\d{1,12})M)?(?:(?P<seconds>\d{1,12}(?:[.,]\d{1,9})?)S)?)?"
)
_UNITS: Final = ("weeks", "days", "hours", "minutes", "seconds")


def parse(text: str) -> datetime.timedelta:
    """Parse a duration. Raises: ValueError: not a duration (years and months have no fixed length)."""
    found = _FORM.fullmatch(text)
    if found is None or text.endswith("T") or not any(found[unit] for unit in _UNITS):
        raise ValueError(f"expected a duration such as P1DT2H3M4.5S, got {text[:40]!r}")
    parts = {unit: float(found[unit].replace(",", ".")) for unit in _UNITS if found[unit]}
    duration = datetime.timedelta(**parts)
    return -duration if found["sign"] == "-" else duration


def text_of(duration: datetime.timedelta) -> str:
    """Return the text that `parse` reads."""
    sign, whole = ("-", -duration) if duration < datetime.timedelta() else ("", duration)
    minutes, seconds = divmod(whole.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}H" * bool(hours), f"{minutes}M" * bool(minutes)]
    if whole.microseconds:
        parts.append(f"{seconds}.{whole.microseconds:06d}".rstrip("0") + "S")
    elif seconds or not whole:
        parts.append(f"{seconds}S")
    time = "".join(parts)
    return f"{sign}P" + f"{whole.days}D" * bool(whole.days) + f"T{time}" * bool(time)
