"""The hashed password that a server keeps: enough to check a login by SCRAM or PLAIN, not enough to log in."""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from flowshare.protocol.scram import (
    DIGESTS,
    ITERATIONS_MIN,
    ScramError,
    base64_of,
    keyed,
    salted_password,
    server_key,
    stored_key,
    unbase64,
)

ITERATIONS: Final = ITERATIONS_MIN
"""Rounds of hashing for plain passwords of a file."""
ITERATIONS_MAX: Final = 16_384
"""Most rounds accepted (Kafka's limit): a login by PLAIN costs them."""
SALT_BYTES_MAX: Final = 128
SALT_BYTES: Final = 16
"""Bytes of salts made here."""
KEY_BYTES: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
LETTERS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """One user's hashed password for one mechanism (`SCRAM-SHA-256` or `SCRAM-SHA-512`)."""

    mechanism: str
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        """hashlib's name of the hash."""
        return DIGESTS[self.mechanism]

    def matches(self, password: str) -> bool:
        """Return True if this is the password; takes some milliseconds, and as long for a wrong one."""
        salted = salted_password(self.digest, password.encode(), self.salt, self.iterations)
        return hmac.compare_digest(stored_key(self.digest, salted), self.stored_key)

    def __str__(self) -> str:
        """Return `SCRAM-SHA-256=salt,iterations,storedkey,serverkey`: the text behind a name in a file of users."""
        parts = (base64_of(self.salt), str(self.iterations), base64_of(self.stored_key), base64_of(self.server_key))
        return f"{self.mechanism}={','.join(parts)}"

    @classmethod
    def parse(cls, text: str) -> Credential:
        """Parse the text of `str`. Raises: ScramError."""
        mechanism, _, rest = text.partition("=")
        if mechanism not in DIGESTS:
            raise ScramError(f"the mechanism is none of {', '.join(DIGESTS)}")
        parts = rest.split(",")
        if len(parts) != 4 or not parts[1].isascii() or not parts[1].isdigit():
            raise ScramError(f"behind {mechanism}= stand salt,iterations,storedkey,serverkey")
        salt, stored, server = (unbase64(part) for part in (parts[0], parts[2], parts[3]))
        return cls(mechanism=mechanism, salt=salt, iterations=int(parts[1]), stored_key=stored, server_key=server)

    def __post_init__(self) -> None:
        size = KEY_BYTES[self.mechanism]
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise ScramError(f"the iterations are not from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
        if not 1 <= len(self.salt) <= SALT_BYTES_MAX:
            raise ScramError(f"the salt does not have 1 to {SALT_BYTES_MAX} bytes")
        if len(self.stored_key) != size or len(self.server_key) != size:
            raise ScramError(f"the keys do not have the {size} bytes of {self.mechanism}")


def hashed(mechanism: str, password: str, *, salt: bytes, iterations: int = ITERATIONS) -> Credential:
    """Hash a password; takes some milliseconds. Raises: ScramError (bad iterations or salt)."""
    return from_salted(
        mechanism,
        salted_password(DIGESTS[mechanism], password.encode(), salt, iterations),
        salt=salt,
        iterations=iterations,
    )


def from_salted(mechanism: str, salted: bytes, *, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a password salted and hashed elsewhere. Raises: as `hashed`."""
    digest = DIGESTS[mechanism]
    return Credential(
        mechanism=mechanism,
        salt=salt,
        iterations=iterations,
        stored_key=stored_key(digest, salted),
        server_key=server_key(digest, salted),
    )


class Shape(NamedTuple):
    """The part of a credential that shows to any client that begins a login with its name, except the salt's value."""

    mechanism: str
    iterations: int
    salt_bytes: int
    salt_in_letters: bool
    """True if the salt has only digits and small letters, as Kafka's tools draw theirs."""

    @classmethod
    def of(cls, credential: Credential) -> Shape:
        """Return a credential's shape."""
        letters = all(byte in LETTERS for byte in credential.salt)
        return cls(credential.mechanism, credential.iterations, len(credential.salt), letters)


def drawn(secret: bytes, name: str, shapes: Mapping[Shape, int]) -> Shape:
    """Return the shape that a name without a credential shows: drawn from those of real ones, as often as they occur.

    The draw is the name's own, so it stays the same; when a credential comes or goes only few names change (the least
    of exponentially distributed numbers, one a shape).
    """

    def place(shape: Shape) -> float:
        number = int.from_bytes(keyed("sha256", secret, f"shape {tuple(shape)} {name}".encode())[:7])
        return -math.log((number + 1) / (1 << 56)) / shapes[shape]

    return min(shapes, key=place)


def salt_for(secret: bytes, mechanism: str, name: str) -> bytes:
    """Return the salt of a user whose file has none; the same each time, and for names that no user has just as
    well."""
    return keyed("sha256", secret, f"salt {mechanism} {name}".encode())[:SALT_BYTES]


def plain_shape(mechanism: str) -> Shape:
    """Return the shape of plain passwords of a file."""
    return Shape(mechanism, ITERATIONS, SALT_BYTES, salt_in_letters=False)


def decoy(secret: bytes, name: str, shape: Shape) -> Credential:
    """Return the credential to check an unknown name against: it looks real from outside and fits no password."""
    mechanism = shape.mechanism
    size = KEY_BYTES[mechanism]
    salt = salt_for(secret, mechanism, name)
    if shape != plain_shape(mechanism):
        salt = b"".join(keyed("sha512", salt, b"%d" % part) for part in range(2))[: shape.salt_bytes]
        if shape.salt_in_letters:
            salt = bytes(LETTERS[byte % len(LETTERS)] for byte in salt)
    return Credential(
        mechanism=mechanism,
        salt=salt,
        iterations=shape.iterations,
        stored_key=keyed("sha512", secret, f"stored {mechanism} {name}".encode())[:size],
        server_key=keyed("sha512", secret, f"server {mechanism} {name}".encode())[:size],
    )
