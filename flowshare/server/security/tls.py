"""TLS of a listener: its files, and the principal of a client certificate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from flowshare.core_errors import FlowshareError
from flowshare.server.security.acls import ANONYMOUS

ClientCertificates = Literal["none", "requested", "required"]

BEGIN_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"
SHORT_NAMES: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""OpenSSL's names of a subject's parts -> RFC 2253's; others are written as OpenSSL has them."""


class BadTls(FlowshareError, ValueError):
    """TLS cannot be set up; the text names the wrong file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Files of a listener with TLS, all PEM.

    certificate: the server's own, with those between it and the CA behind it.
    key: its private key without a pass phrase; None: in the certificate's file.
    ca: certificates of the CA trusted for clients; needed when client certificates are requested.
    client_certificates: `none` (default), `requested` (a client may show one), `required` (none: no connection).
    """

    certificate: Path
    key: Path | None = None
    ca: Path | None = None
    client_certificates: ClientCertificates = "none"

    def context(self) -> ssl.SSLContext:
        """Return the context of a listening socket, TLS 1.2 or later. Raises: BadTls."""
        if self.client_certificates != "none" and self.ca is None:
            raise BadTls("client certificates are asked for, but no CA file says whose are trusted; name one")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load_own(context)
        if self.ca is not None:
            _load_certificates(context, self.ca, "CA file")
        if self.client_certificates != "none":
            required = self.client_certificates == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.certificate, "certificate file")
        key = self.key or self.certificate
        text = _read(key, "key file")
        if "PRIVATE KEY-----" not in text:
            raise BadTls(f"the key file {key} has no private key in PEM form")
        if "ENCRYPTED" in text:
            raise BadTls(f"the key file {key} is locked by a pass phrase; write it without one (openssl pkey)")
        try:
            context.load_cert_chain(self.certificate, key)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise BadTls(f"the key in {key} does not belong to the certificate in {self.certificate}") from None
            raise BadTls(f"the key file {key} cannot be used: {error.reason or error}") from None


def principal_of(tls: ssl.SSLObject | None) -> str:
    """Return the peer's principal: `User:` and the subject of the client's certificate, or `User:ANONYMOUS` without
    one.

    The subject is written by RFC 2253, as Kafka's default is: `User:CN=etl,OU=data,O=shop`.
    """
    certificate = (tls.getpeercert() if tls is not None else None) or {}
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    name = ",".join("+".join(_part(*pair) for pair in together) for together in reversed(subject))
    return f"User:{name}" if name else ANONYMOUS


def _part(name: str, value: str) -> str:
    escaped = "".join(f"\\{c}" if c in ',+"\\<>;' else c for c in value)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    if len(value) > 1 and value.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return f"{SHORT_NAMES.get(name, name)}={escaped}"


def _load_certificates(context: ssl.SSLContext, path: Path, what: str) -> None:
    if BEGIN_CERTIFICATE not in _read(path, what):
        raise BadTls(f"the {what} {path} has no certificate in PEM form")
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise BadTls(f"the {what} {path} has a certificate that cannot be read: {error.reason or error}") from None


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="latin-1")
    except OSError as error:
        raise BadTls(f"the {what} {path} cannot be read: {error.strerror}") from None
