"""Summary of a slot reader, for the local cache: the data beside its table from which another reader can go on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from flowshare.slots.errors import SlotCorrupt
from flowshare.slots.records import Claim

FORMAT: Final = 1


class Fingerprint(NamedTuple):
    """A record of the log: its offset and the checksum that its value begins with. Tells one log from another."""

    offset: int
    checksum: int


class PlacedClaim(NamedTuple):
    """The place of a claim, and the bytes fed before it."""

    offset: int
    log_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A reader at `position`: the present claim, the next serial, the last record read, the claims' places."""

    claim: Claim | None
    serial: int
    position: int
    last: Fingerprint | None
    handed_over_to: str | None
    claims: tuple[PlacedClaim, ...]
    log_bytes: int

    def encode(self) -> bytes:
        """Return the summary as bytes."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Summary:
        """Decode a summary that `encode` wrote. Raises: SlotCorrupt."""
        try:
            fields: dict[str, Any] = json.loads(data)
            if fields.pop("format") != FORMAT:
                raise SlotCorrupt("the summary of a slot has another format")
            claim, last = fields.pop("claim"), fields.pop("last")
            return cls(
                claim=None if claim is None else Claim(**claim),
                last=None if last is None else Fingerprint(*last),
                claims=tuple(PlacedClaim(*one) for one in fields.pop("claims")),
                **fields,
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SlotCorrupt(f"the summary of a slot cannot be read: {error}") from error
