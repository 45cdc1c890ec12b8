"""The registry in memory behind a port, for processes that are not the test's."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from flowshare.agents.codecs.client import RegistryError, SchemaText, UnknownSchema
from tests.agents.registry_codecs.fake import FakeClient


class Server(ThreadingHTTPServer):
    """HTTP server that answers from a fake client. logins: list that takes the logins of requests; None: logins are not
    checked."""

    def __init__(self, client: FakeClient, logins: list[str] | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.client = client
        self.logins = logins


class Handler(BaseHTTPRequestHandler):
    server: Server

    @property
    def parts(self) -> list[str]:
        return [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]

    def do_GET(self) -> None:
        client, parts = self.server.client, self.parts
        if parts[:2] == ["schemas", "ids"]:
            self._answer(lambda: _said(client.by_id(int(parts[2]))))
        else:
            self._answer(lambda: _with_id(*client.latest(parts[1])))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = SchemaText(body.get("schemaType", "AVRO"), body["schema"])
        self._answer(lambda: {"id": self.server.client.register(self.parts[1], text)})

    def _answer(self, ask: Callable[[], Any]) -> None:
        status, said = self._answered(ask)
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answered(self, ask: Callable[[], Any]) -> tuple[int, Any]:
        if self.server.logins is not None:
            self.server.logins.append(self.headers.get("Authorization", ""))
            if "wrong" in self.server.logins[-1]:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        try:
            return 200, ask()
        except UnknownSchema as error:
            return 404, {"error_code": 40403, "message": str(error)}
        except RegistryError as error:
            return 500, {"error_code": 50001, "message": str(error)}

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def served(client: FakeClient, tls: ssl.SSLContext | None = None, logins: list[str] | None = None) -> Iterator[str]:
    """The address at which a registry answers as this one does. logins: gets those that come with questions; a wrong
    one is refused."""
    server = Server(client, logins)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _said(text: SchemaText) -> dict[str, Any]:
    return {"schema": text.text, "schemaType": text.kind}


def _with_id(number: int, text: SchemaText) -> dict[str, Any]:
    return {"id": number, "version": 1, **_said(text)}
