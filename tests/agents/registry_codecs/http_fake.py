"""The registry in memory behind a port, for processes that are not the test's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from flowshare.agents.codecs.client import RegistryError, SchemaText, UnknownSchema
from tests.agents.registry_codecs.fake import FakeClient


@contextmanager
def served(client: FakeClient) -> Iterator[str]:
    """The address at which a registry answers as this one does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
            if parts[:2] == ["schemas", "ids"]:
                self._answer(lambda: {**_said(client.by_id(int(parts[2])))})
            else:
                self._answer(lambda: _with_id(*client.latest(parts[1])))

        def do_POST(self) -> None:
            parts = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = SchemaText(body.get("schemaType", "AVRO"), body["schema"])
            self._answer(lambda: {"id": client.register(parts[1], text)})

        def _answer(self, ask: Any) -> None:
            try:
                status, said = 200, ask()
            except UnknownSchema as error:
                status, said = 404, {"error_code": 40403, "message": str(error)}
            except RegistryError as error:
                status, said = 500, {"error_code": 50001, "message": str(error)}
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _said(text: SchemaText) -> dict[str, Any]:
    return {"schema": text.text, "schemaType": text.kind}


def _with_id(number: int, text: SchemaText) -> dict[str, Any]:
    return {"id": number, "version": 1, **_said(text)}
