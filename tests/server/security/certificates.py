"""Certificates made for a test."""

from __future__ import annotations

from pathlib import Path

import trustme
from cryptography.x509 import load_pem_x509_certificate

from flowshare.server.security.tls import ClientCertificates, ServerTls


class Certificates:
    """A CA, a server's certificate for 127.0.0.1, one for another host, and a client's, as files below `folder`."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        client = authority.issue_cert("etl@shop.example", common_name="etl", organization_name="My Shop")
        elsewhere = authority.issue_cert("elsewhere.example")
        self.ca = folder / "ca.pem"
        self.server = folder / "server.pem"
        self.server_key = folder / "server.key"
        self.client = folder / "client.pem"
        self.elsewhere = folder / "elsewhere.pem"
        authority.cert_pem.write_to_path(self.ca)
        server.cert_chain_pems[0].write_to_path(self.server)
        server.private_key_pem.write_to_path(self.server_key)
        client.private_key_and_cert_chain_pem.write_to_path(self.client)

        elsewhere.private_key_and_cert_chain_pem.write_to_path(self.elsewhere)

    @property
    def client_name(self) -> str:
        """The subject of the client's certificate, as another library writes it."""
        return load_pem_x509_certificate(self.client.read_bytes()).subject.rfc4514_string()

    def tls(self, client_certificates: ClientCertificates = "none") -> ServerTls:
        """The server's settings."""
        return ServerTls(
            certificate=self.server, key=self.server_key, ca=self.ca, client_certificates=client_certificates
        )
