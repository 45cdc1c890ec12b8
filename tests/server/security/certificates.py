"""Certificates made for a test."""

from __future__ import annotations

from pathlib import Path

import trustme

from flowshare.server.security.tls import ClientCertificates, ServerTls


class Certificates:
    """A CA, a server's certificate for 127.0.0.1, and a client's, as files below `folder`."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        client = authority.issue_cert("etl@shop.example", common_name="etl", organization_name="My Shop")
        self.ca = folder / "ca.pem"
        self.server = folder / "server.pem"
        self.server_key = folder / "server.key"
        self.client = folder / "client.pem"
        authority.cert_pem.write_to_path(self.ca)
        server.cert_chain_pems[0].write_to_path(self.server)
        server.private_key_pem.write_to_path(self.server_key)
        client.private_key_and_cert_chain_pem.write_to_path(self.client)

    def tls(self, client_certificates: ClientCertificates = "none") -> ServerTls:
        """The server's settings."""
        return ServerTls(
            certificate=self.server, key=self.server_key, ca=self.ca, client_certificates=client_certificates
        )
