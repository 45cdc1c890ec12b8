"""The plain messages: what the in-process client and server exchange, and where each API is declared.

Field for field these are Kafka's messages (KIP-932 for the share APIs) with ranges and bytes as they are. Flowshare's
own additions are marked; other clients never set them. Every request class names its response class by its type
parameter, and the `Api` (`protocol.declaration`) below both says with which versions it crosses a socket, and how.
There is no code here that reads or writes bytes, and none that answers.

A family of messages is loaded when one of its names is first used (PEP 562): making its classes takes up to 10 ms, and
who runs share agents never speaks of classic groups, transactions or stored state. Families are looked through in the
order of `FAMILIES`.
"""

# pyright: reportGeneralTypeIssues=false
# (families import the same words of declarations)

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.messages.base import Connection as Connection
from flowshare.protocol.messages.base import Request as Request
from flowshare.protocol.messages.base import Response as Response
from flowshare.protocol.messages.base import TopicPartition as TopicPartition

if TYPE_CHECKING:
    from flowshare.protocol.declaration import Api
    from flowshare.protocol.messages.browse import *  # noqa: F403
    from flowshare.protocol.messages.classic import *  # noqa: F403
    from flowshare.protocol.messages.consumer import *  # noqa: F403
    from flowshare.protocol.messages.cooperative import *  # noqa: F403
    from flowshare.protocol.messages.groups import *  # noqa: F403
    from flowshare.protocol.messages.records import *  # noqa: F403
    from flowshare.protocol.messages.security import *  # noqa: F403
    from flowshare.protocol.messages.share import *  # noqa: F403
    from flowshare.protocol.messages.state import *  # noqa: F403
    from flowshare.protocol.messages.topics import *  # noqa: F403
    from flowshare.protocol.messages.transactions import *  # noqa: F403

FAMILIES: Final = (
    "share", "topics", "groups", "records", "state", "classic", "consumer", "transactions", "security", "cooperative",
    "browse",
)  # fmt: skip
"""Modules of messages, searched in this order: the messages of all share agents come first."""


def apis() -> tuple[Api, ...]:
    """Return all declared APIs."""
    from flowshare.protocol.declaration import Api

    families = (importlib.import_module(f"{__name__}.{family}") for family in FAMILIES)
    return tuple(one for family in families for one in vars(family).values() if isinstance(one, Api))


def __getattr__(name: str) -> Any:
    """Load a message at its first use, and its family with it."""
    for family in () if name.startswith("_") else FAMILIES:
        found = importlib.import_module(f"{__name__}.{family}")
        if name in vars(found):
            globals()[name] = value = vars(found)[name]
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
