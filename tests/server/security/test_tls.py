"""TLS of a listener: files that are wrong, and who a certificate says somebody is."""

from __future__ import annotations

import ssl

import pytest

from flowshare.client.net.security import BadSecurity, Security
from flowshare.server.security.tls import BadTls, ServerTls, principal_of
from tests.server.security.certificates import Certificates


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_old_tls_is_not_spoken(files: Certificates) -> None:
    assert files.tls().context().minimum_version is ssl.TLSVersion.TLSv1_2
    security = Security(protocol="SSL", ca_file=files.ca)
    context = security.ssl_context()
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_client_certificates_are_asked_for_as_told(files: Certificates) -> None:
    assert files.tls("none").context().verify_mode is ssl.CERT_NONE
    assert files.tls("requested").context().verify_mode is ssl.CERT_OPTIONAL
    assert files.tls("required").context().verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(BadTls, match="no CA file says whose are trusted"):
        ServerTls(certificate=files.client, client_certificates="required").context()


def test_the_key_may_stand_in_the_certificates_file(files: Certificates) -> None:
    ServerTls(certificate=files.client).context()
    Security(protocol="SSL", certificate_file=files.client).ssl_context()


@pytest.mark.parametrize(
    ("certificate", "key", "ca", "reason"),
    [
        ("missing.pem", "server.key", None, r"the certificate file .*missing.pem cannot be read: No such file"),
        ("server.key", "server.key", None, r"the certificate file .*server.key has no certificate"),
        ("broken.pem", "server.key", None, r"the certificate file .*broken.pem has a certificate that cannot be read"),
        ("server.pem", "missing.key", None, r"the key file .*missing.key cannot be read"),
        ("server.pem", None, None, r"the key file .*server.pem has no private key"),
        ("server.pem", "broken.key", None, r"the key file .*broken.key cannot be used"),
        ("server.pem", "locked.key", None, r"the key file .*locked.key is locked by a pass phrase"),
        ("server.pem", "client.pem", None, r"the key in .*client.pem does not belong to the certificate in"),
        ("server.pem", "server.key", "missing.pem", r"the CA file .*missing.pem cannot be read"),
        ("server.pem", "server.key", "server.key", r"the CA file .*server.key has no certificate"),
    ],
)
def test_the_file_that_is_wrong_is_named(
    files: Certificates, certificate: str, key: str | None, ca: str | None, reason: str
) -> None:
    folder = files.ca.parent
    (folder / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    (folder / "broken.key").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    (folder / "locked.key").write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )

    with pytest.raises(BadTls, match=reason):
        ServerTls(
            certificate=folder / certificate, key=folder / key if key else None, ca=folder / ca if ca else None
        ).context()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ca_file": "missing.pem"}, "the CA file .*missing.pem cannot be read"),
        ({"ca_file": "server.key"}, "the CA file .*server.key cannot be used"),
        ({"certificate_file": "missing.pem"}, "the key file .*missing.pem cannot be read"),
        ({"certificate_file": "server.pem"}, "the certificate file .*server.pem cannot be used"),
        ({"certificate_file": "server.pem", "key_file": "locked.key"}, "locked by a pass phrase"),
    ],
)
def test_a_clients_file_that_is_wrong_is_named(files: Certificates, options: dict[str, str], reason: str) -> None:
    folder = files.ca.parent
    (folder / "locked.key").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    security = Security(protocol="SSL", **{name: folder / file for name, file in options.items()})

    with pytest.raises(BadSecurity, match=reason):
        security.ssl_context()


class Shown:
    """A TLS connection whose other end showed a certificate with this subject."""

    def __init__(self, *subject) -> None:
        self._certificate = {"subject": subject} if subject else {}

    def getpeercert(self):
        return self._certificate


@pytest.mark.parametrize(
    ("subject", "principal"),
    [
        ((), "User:ANONYMOUS"),
        (
            ((("countryName", "DE"),), (("organizationName", "Shop"),), (("commonName", "etl"),)),
            "User:CN=etl,O=Shop,C=DE",
        ),
        (((("commonName", 'a,b+c"d\\e<f>g;h'),),), 'User:CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        (((("commonName", " #x "),),), "User:CN=\\ #x\\ "),
        (((("commonName", "#x"),),), "User:CN=\\#x"),
        (((("commonName", "a"), ("userId", "7")),), "User:CN=a+UID=7"),
    ],
)
def test_a_principal_is_the_subject_as_kafka_writes_it(subject, principal: str) -> None:
    assert principal_of(Shown(*subject)) == principal


def test_nobody_is_known_without_tls() -> None:
    assert principal_of(None) == "User:ANONYMOUS"
