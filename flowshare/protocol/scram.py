"""SCRAM-SHA-256 and SCRAM-SHA-512 for both ends: keys, proofs, and the form of messages.

RFC 5802 is the method, RFC 7677 adds SHA-256; Kafka uses it without channel binding. `digest` is hashlib's name of the
hash. Pure functions of bytes: random numbers come in as arguments.

The library scramp does not fit: it refuses salts below 12 bytes, which Kafka's tools may set, normalises passwords
before it hashes them, which Kafka's clients do not, and makes no keys of a password that was salted elsewhere, which is
what AlterUserScramCredentials sends.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Mapping
from typing import Final

DIGESTS: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism -> hashlib's name of its hash."""
ITERATIONS_MIN: Final = 4_096
"""Fewest rounds of hashing that either end accepts (RFC 7677 §4, Kafka)."""
NO_BINDING: Final = b"n,,"
"""The first bytes of the first message of a client without channel binding."""
MESSAGE_MAX: Final = 4_096
"""Longest message read, in bytes; real ones have about 200."""

_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class ScramError(ValueError):
    """A message that is not SCRAM, or a proof that does not hold; the text has no secrets."""


def salted_password(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return RFC 5802's SaltedPassword; takes some milliseconds."""
    return hashlib.pbkdf2_hmac(digest, password, salt, iterations)


def stored_key(digest: str, salted: bytes) -> bytes:
    """Return RFC 5802's StoredKey, which a server keeps to check a client."""
    return hashlib.new(digest, _client_key(digest, salted)).digest()


def server_key(digest: str, salted: bytes) -> bytes:
    """Return RFC 5802's ServerKey, which a server keeps to prove that it knows the user."""
    return keyed(digest, salted, b"Server Key")


def client_proof(digest: str, salted: bytes, dialogue: bytes) -> bytes:
    """Return a client's proof that it knows the password; `dialogue` is RFC 5802's AuthMessage."""
    return _xor(_client_key(digest, salted), keyed(digest, stored_key(digest, salted), dialogue))


def proof_holds(digest: str, stored: bytes, dialogue: bytes, proof: bytes) -> bool:
    """True if `proof` was made with the password behind `stored`."""
    signature = keyed(digest, stored, dialogue)
    if len(proof) != len(signature):
        return False
    return hmac.compare_digest(hashlib.new(digest, _xor(proof, signature)).digest(), stored)


def keyed(digest: str, key: bytes, text: bytes) -> bytes:
    """Return the HMAC of `text`."""
    return hmac.digest(key, text, digest)


def fields(message: str, names: str) -> list[str]:
    """Return the values of a message's attributes, which must begin with `names` in this order; extensions behind are
    ignored.

    Raises: ScramError (another order, a missing attribute, or an extension that must be understood: `m=`)
    """
    parts = message.split(",")
    if any(part.startswith("m=") for part in parts):
        raise ScramError("the SCRAM message demands an extension that is not known here")
    if len(parts) < len(names) or any(
        not part.startswith(f"{name}=") for name, part in zip(names, parts, strict=False)
    ):
        raise ScramError(f"the SCRAM message does not have the attributes {', '.join(names)} in this order")
    return [part[2:] for part in parts[: len(names)]]


def text_of(message: bytes) -> str:
    """Return a message as text. Raises: ScramError (too long, or no UTF-8)."""
    if len(message) > MESSAGE_MAX:
        raise ScramError(f"the SCRAM message is longer than {MESSAGE_MAX} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("the SCRAM message is no UTF-8") from None


def unbase64(text: str) -> bytes:
    """Decode strict base64. Raises: ScramError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("the SCRAM message has an attribute that is no base64") from None


def base64_of(raw: bytes) -> str:
    """Return base64 as SCRAM writes it."""
    return base64.b64encode(raw).decode()


def escaped(name: str) -> str:
    """Return a user name as it stands in a message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str:
    """Return a user name from a message. Raises: ScramError (a `=` that begins neither `=2C` nor `=3D`)."""
    plain = name.replace("=2C", ",").replace("=3D", "")
    if "=" in plain:
        raise ScramError("the SCRAM message has a user name with a bare '='")
    return name.replace("=2C", ",").replace("=3D", "=")


def prepared(text: str) -> str:
    """Normalise a name or password that can be written in several ways: SASLprep (RFC 4013).

    Raises: ScramError (a character that SASLprep forbids; the text does not show it)
    """
    mapped = "".join(" " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c))
    normal = unicodedata.normalize("NFKC", mapped)
    if any(forbidden(c) for c in normal for forbidden in _PROHIBITED):
        raise ScramError("it has a character that names and passwords may not have (a control character, for one)")
    if any(map(stringprep.in_table_d1, normal)) and (
        any(map(stringprep.in_table_d2, normal))
        or not (stringprep.in_table_d1(normal[0]) and stringprep.in_table_d1(normal[-1]))
    ):
        raise ScramError("it mixes writing directions in a way that names and passwords may not")
    return normal


def _client_key(digest: str, salted: bytes) -> bytes:
    return keyed(digest, salted, b"Client Key")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
