"""`Security`: the security settings of a client's connections: TLS, SASL, both or neither."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from flowshare.client.errors import ClientError
from flowshare.client.net.login import LoginError, PlainClient, ScramClient
from flowshare.protocol.scram import base64_of

if TYPE_CHECKING:
    import ssl

    from flowshare.client.net.handshake import SaslExchange

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

PASSWORD_VARIABLE: Final = "FLOWSHARE_SASL_PASSWORD"  # noqa: S105 - the variable's name
ROUNDS_MAX: Final = 4
"""The most messages of one login."""


class BadSecurity(ClientError, ValueError):
    """Security settings that cannot be used; the text says what to change and shows no password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The security settings of a connection, named as Kafka's settings where Kafka has them.

    protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (security.protocol).
    mechanism, username, password: the login of the SASL_ protocols (sasl.mechanism).
    ca_file: PEM of the CAs whose brokers are trusted; None: those that the machine trusts.
    certificate_file, key_file: the client's own certificate, PEM; the key may stand in the certificate's file.
    check_hostname: True: the broker's certificate must name the host (ssl.endpoint.identification.algorithm).

    Raises: BadSecurity
    """

    protocol: SecurityProtocol = "PLAINTEXT"
    mechanism: Mechanism = "SCRAM-SHA-512"
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.protocol not in get_args(SecurityProtocol):
            raise BadSecurity(f"security {self.protocol!r} is none of {', '.join(get_args(SecurityProtocol))}")
        if self.mechanism not in get_args(Mechanism):
            raise BadSecurity(f"the SASL mechanism {self.mechanism!r} is none of {', '.join(get_args(Mechanism))}")
        if self.sasl and not (self.username and self.password):
            missing = "password" if self.username else "user name"
            raise BadSecurity(
                f"security {self.protocol} needs a user name and a password, and there is no {missing}; "
                f"the password can stand in the environment variable {PASSWORD_VARIABLE}, too"
            )
        if "\0" in self.username + self.password:
            raise BadSecurity("a user name and a password have no NUL character")
        if self.username and not self.sasl:
            raise BadSecurity(f"security {self.protocol} has no login, but a user is named; write SASL_SSL")
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise BadSecurity(f"security {self.protocol} has no TLS, but files for it are named; write SASL_SSL or SSL")
        if self.key_file and not self.certificate_file:
            raise BadSecurity("a key file is named without a certificate file; name both")

    @property
    def tls(self) -> bool:
        """True if the connection is encrypted (TLS)."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        """True if the client logs in with SASL."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return a TLS context with these files, 1.2 or later; None without TLS. Raises: BadSecurity naming the wrong
        file."""
        if not self.tls:
            return None
        import ssl

        context = ssl.create_default_context()
        if self.ca_file is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            _load("CA file", self.ca_file, context.load_verify_locations)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.certificate_file is not None:
            key = self.key_file or self.certificate_file
            if "ENCRYPTED" in _load("key file", key):
                raise BadSecurity(f"the key file {key} is locked by a pass phrase; write it without one (openssl pkey)")
            _load("certificate file", self.certificate_file, lambda path: context.load_cert_chain(path, key))
        return context

    async def authenticate(
        self, exchange: SaslExchange, *, random: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        """Log in on a connection; without SASL do nothing. `random(n)`: n random bytes.

        Raises: ClientError (the broker's answer; LoginError: the other end does not know the user).
        """
        if not self.sasl:
            return
        await exchange.handshake(self.mechanism)
        login = self._login(random)
        message = login.first()
        for _ in range(ROUNDS_MAX):
            answer = await exchange.send(message)
            reply = await asyncio.to_thread(login.next, answer)
            if reply is None:
                return
            message = reply
        raise LoginError(f"the broker did not end the login within {ROUNDS_MAX} messages")

    def for_aiokafka(self) -> dict[str, Any]:
        """Return keyword arguments for aiokafka's clients. Raises: BadSecurity."""
        arguments: dict[str, Any] = {"security_protocol": self.protocol}
        if self.tls:
            arguments["ssl_context"] = self.ssl_context()
        if self.sasl:
            arguments["sasl_mechanism"] = self.mechanism
            arguments["sasl_plain_username"] = self.username
            arguments["sasl_plain_password"] = self.password
        return arguments

    def _login(self, random: Callable[[int], bytes]) -> PlainClient | ScramClient:
        if self.mechanism == "PLAIN":
            return PlainClient(self.username, self.password)
        return ScramClient(self.mechanism, self.username, self.password, nonce=base64_of(random(24)))


def find_password(given: str, file: Path | None, environment: Mapping[str, str]) -> str:
    """Return the password: `given`, or the first line of a file, or `FLOWSHARE_SASL_PASSWORD`; empty: there is none.

    Raises: BadSecurity (the file cannot be read or is empty).
    """
    if given:
        return given
    if file is None:
        return environment.get(PASSWORD_VARIABLE, "")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSecurity(f"the password file {file} cannot be read: {_reason(error)}") from None
    if not lines or not lines[0]:
        raise BadSecurity(f"the password file {file} has no password in its first line")
    return lines[0]


def _load(what: str, path: Path, load: Callable[[Path], None] | None = None) -> str:
    """Call `load` with the file, and return its text. Raises: BadSecurity."""
    import ssl

    try:
        text = path.read_text(encoding="latin-1")
        if load is not None:
            load(path)
    except ssl.SSLError as error:
        raise BadSecurity(f"the {what} {path} cannot be used: {error.reason or 'it is no PEM'}") from None
    except OSError as error:
        raise BadSecurity(f"the {what} {path} cannot be read: {error.strerror}") from None
    return text


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else (error.strerror or "no reason given")
