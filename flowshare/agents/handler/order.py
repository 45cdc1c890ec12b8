"""The option `order`: records of one key are handled one after the other, in the order of the log (SG-18.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from flowshare.agents.handler.errors import OptionError

BY_KEY: Final = "key"
HEADER_PREFIX: Final = "header:"
PARK: Final = "park"
"""The option `after_dead_letter` by which keys are parked."""
CHAIN: Final = 16
"""Records of one key that a member is given in a row; of a handler with outputs one, as each waits for those."""


@dataclass(frozen=True, slots=True)
class Header:
    """`order=fs.Header("customer")`: the value of that header is what orders, instead of the record's key.

    The last header of the name counts. Records without it, or with a null value, have no order.
    """

    name: str

    def __post_init__(self) -> None:
        """Raises: OptionError when the name is none."""
        if not isinstance(self.name, str) or not self.name or self.name != self.name.strip():
            raise OptionError(f"fs.Header takes the name of a header, without white space around it, not {self.name!r}")


Order = str | Header | None
"""What the option takes: `"key"`, a `Header`, or None, no order."""


def parse_order(value: Any) -> Order:
    """The option as it was given. Raises: OptionError."""
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
    """share.key.order of the group; None: there is no order, and nothing to set."""
    return f"{HEADER_PREFIX}{order.name}" if isinstance(order, Header) else order
