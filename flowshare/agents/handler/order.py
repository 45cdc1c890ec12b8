"""The option `order`: records of one key are handled one after the other, in the order of the log (SG-18.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flowshare.agents.handler.errors import OptionError

BY_KEY: Final = "key"
HEADER_PREFIX: Final = "header:"
PARK: Final = "park"
"""Value of `after_dead_letter` that parks keys."""
CHAIN: Final = 16
"""Records of one key that a member is given in a row; only 1 if the handler has outputs, which are confirmed first."""


@dataclass(frozen=True, slots=True)
class Header:
    """Order by a header: with `order=fs.Header("customer")` its value orders records, instead of the record's key.

    The last header of the name counts. Records without the header, or with a null value, have no order.
    """

    name: str

    def __post_init__(self) -> None:
        """Raises: OptionError when the name is not valid."""
        if not isinstance(self.name, str) or not self.name or self.name != self.name.strip():
            raise OptionError(f"fs.Header takes the name of a header, without white space around it, not {self.name!r}")


Order = str | Header | None
"""Values of the option `order`: `"key"`, a `Header`, or None for no order."""


def parse_order(value: Any) -> Order:
    """Check the option. Raises: OptionError."""
    if value is None or isinstance(value, Header):
        return value
    if value == BY_KEY:
        return BY_KEY
    hint = ""
    if isinstance(value, str) and value.strip().lower() == BY_KEY:
        hint = ", here order='key'"
    elif isinstance(value, str) and value:  # as the group's setting has it, or the bare name
        hint = f", here order=fs.Header({value.removeprefix(HEADER_PREFIX)!r})"
    raise OptionError(f"order takes 'key', fs.Header(name), or None{hint}, not {value!r}")


def order_setting(order: Order) -> str | None:
    """Return share.key.order of the group; None: no order, and nothing to set."""
    return f"{HEADER_PREFIX}{order.name}" if isinstance(order, Header) else order
