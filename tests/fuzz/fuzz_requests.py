"""Coverage-guided fuzzing of everything that reads a stranger's bytes: `make fuzz`, or this file with atheris' options.

    python tests/fuzz/fuzz_requests.py -runs=5000 [folder of the corpus, else one below the system's temporary one]

The first byte says how the rest is sent: as a stream (lengths included), or as one frame, logged in or not; or that it
is a sequence (`sessions.py`): steps over several connections of one server, in which logins, share sessions, consumer
groups and transactions go on with what earlier answers told. The corpus begins with valid requests of every API and
version, and with the sessions of `seeds.py`, all of which get through. A sequence has a server of its own, so an input
does again what it did; the others share one, a few hundred at a time.

Ends with a traceback and the input when a request fails within the server, an answer is not one to its request,
something hangs or is left behind; the input is written into a file beside the corpus. To see what it says:

    python tests/fuzz/fuzz_requests.py --show FILE
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pkgutil
import random
import struct
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["flowshare", "kio"]):
    import flowshare.server
    import flowshare.server.edge.api_versions  # instrumented with all it needs
    import flowshare.transactions
    from flowshare.testing.virtual import VirtualTimeLoop
    from tests.fuzz.pipe import Target, target
    from tests.fuzz.samples import valid
    from tests.fuzz.seeds import encoded
    from tests.fuzz.seeds import seeds as sessions
    from tests.fuzz.sessions import mutated, play, shown

    for _package in (flowshare.server, flowshare.transactions):
        for _found in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
            importlib.import_module(_found.name)  # those, too, that would be imported when they are needed

RENEWED_AFTER = 500
"""Inputs after which a new server takes over, so that what earlier ones made does not grow for ever."""
STREAM, NOT_LOGGED_IN, SEQUENCE = 1, 2, 4
"""Bits of the first byte."""
SECONDS_AN_INPUT = 60


class Fuzzer:
    """Feeds inputs to a target on a loop of its own."""

    def __init__(self) -> None:
        self._loop = VirtualTimeLoop()
        self._sequences = VirtualTimeLoop()
        """Of their servers, so that their tasks are theirs alone."""
        self._stack = contextlib.AsyncExitStack()
        self._target: Target | None = None
        self._fed = 0

    def one(self, data: bytes) -> None:
        """Feed one input."""
        if data and data[0] & SEQUENCE:
            self._sequences.run_until_complete(self._play(data[1:]))
        elif data:
            self._loop.run_until_complete(self._feed(data[0], data[1:]))

    def seeds(self) -> list[bytes]:
        """Valid requests of every API and version, and sessions of them."""
        apis = self._loop.run_until_complete(self._renewed()).apis
        rng = random.Random(0)
        requests = [
            bytes((0,)) + valid(api, version, rng)
            for api in apis.values()
            for version in range(api.versions[0], api.versions[1] + 1)
        ]
        return [*requests, *(bytes((SEQUENCE,)) + encoded(said) for said in sessions().values())]

    async def _play(self, data: bytes) -> None:
        async with target() as made:
            await play(made, data)

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


def mutate(data: bytes, size_max: int, seed: int) -> bytes:
    """Another input: of a sequence's steps every other time whole ones come, go and change their places."""
    rng = random.Random(seed)
    if data and data[0] & SEQUENCE and rng.random() < 0.75:
        return (data[:1] + mutated(data[1:], rng))[:size_max]
    return bytes(atheris.Mutate(data, size_max))


def main(argv: list[str]) -> None:
    """Fuzz as the options say."""
    logging.getLogger("flowshare").setLevel(logging.ERROR)  # a line for every closed connection is too much here
    if argv[1:2] == ["--show"]:
        data = Path(argv[2]).read_bytes()
        print("\n".join(shown(data[1:])) if data[:1] and data[0] & SEQUENCE else data.hex())
        return
    fuzzer = Fuzzer()
    options = [word for word in argv[1:] if word.startswith("-")]
    folders = [Path(word) for word in argv[1:] if not word.startswith("-")]
    corpus = folders[0] if folders else Path(tempfile.gettempdir()) / "flowshare-fuzz"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(fuzzer.seeds()):
        (corpus / f"seed-{number:04}").write_bytes(seed)
    bounds = [f"-timeout={SECONDS_AN_INPUT}", "-max_len=4096", "-len_control=0", f"-artifact_prefix={corpus.parent}/"]
    atheris.Setup([argv[0], *bounds, *options, str(corpus)], fuzzer.one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
