"""Coverage-guided fuzzing of everything that reads a stranger's bytes: `make fuzz`, or this file with atheris' options.

    python tests/fuzz/fuzz_requests.py -runs=5000 [folder of the corpus, else one below the system's temporary one]

The first byte says how the rest is sent: as a stream (lengths included), or as one frame, logged in or not. The corpus
begins with valid requests of every API and version. Ends with a traceback and the input when a request fails within
the server, something hangs or is left behind; the
input is written into a file beside the corpus.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["flowshare", "kio"]):
    from flowshare.server.edge.api_versions import ApiVersionsApi  # noqa: F401 - instrumented with all it needs
    from tests.fuzz.pipe import Target, target
    from tests.fuzz.samples import valid

RENEWED_AFTER = 500
"""Inputs after which a new server takes over, so that what earlier ones made does not grow for ever."""
STREAM, NOT_LOGGED_IN = 1, 2
"""Bits of the first byte."""
SECONDS_AN_INPUT = 20


class Fuzzer:
    """Feeds inputs to a target on a loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = contextlib.AsyncExitStack()
        self._target: Target | None = None
        self._fed = 0

    def one(self, data: bytes) -> None:
        """Feed one input."""
        if data:
            self._loop.run_until_complete(self._feed(data[0], data[1:]))

    def seeds(self) -> list[bytes]:
        """Valid requests of every API and version."""
        apis = self._loop.run_until_complete(self._renewed()).apis
        rng = random.Random(0)
        return [
            bytes((0,)) + valid(api, version, rng)
            for api in apis.values()
            for version in range(api.lowest, api.highest + 1)
        ]

    async def _feed(self, how: int, data: bytes) -> None:
        target = self._target
        if target is None or self._fed >= RENEWED_AFTER:
            target = await self._renewed()
        self._fed += 1
        if not how & STREAM:
            data = struct.pack(">i", len(data)) + data
        await target.feed(data, logged_in=not how & NOT_LOGGED_IN)

    async def _renewed(self) -> Target:
        await self._stack.aclose()
        self._stack = contextlib.AsyncExitStack()
        self._target = await self._stack.enter_async_context(target())
        self._fed = 0
        return self._target


def main(argv: list[str]) -> None:
    """Fuzz as the options say."""
    logging.getLogger("flowshare").setLevel(logging.ERROR)  # a line for every closed connection is too much here
    fuzzer = Fuzzer()
    options = [word for word in argv[1:] if word.startswith("-")]
    folders = [Path(word) for word in argv[1:] if not word.startswith("-")]
    corpus = folders[0] if folders else Path(tempfile.gettempdir()) / "flowshare-fuzz"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(fuzzer.seeds()):
        (corpus / f"seed-{number:04}").write_bytes(seed)
    bounds = [f"-timeout={SECONDS_AN_INPUT}", "-max_len=4096", f"-artifact_prefix={corpus.parent}/"]
    atheris.Setup([argv[0], *bounds, *options, str(corpus)], fuzzer.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
