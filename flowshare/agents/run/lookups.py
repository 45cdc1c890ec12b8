"""What codecs have to look up before a record is handled or an output written, such as a schema in its registry.

A runner that needs something waits for it with its record in hand, whose lock is renewed: no attempt is used, its
handler's `timeout` does not run, and others go on meanwhile. Each thing is fetched once at a time, in a thread, and
again for as long as nobody answers:

    needed ──fetched──▶ the record is handled (what there is not, the codec then says: a dead letter)
           ──no answer──▶ again after 0.5 s, doubling to 10 s; an error in the log, repeated every 30 s
                          after 10 s, where a release costs no attempt: given back for 30 s, others get the runner
           ──the worker stops──▶ given back at once; after its handler that costs the attempt

So at most `concurrency` records wait here, and what is fetched ahead behind them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

from flowshare.agents.handler.codec import CodecDecoder, Missing
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.agents.handler.texts import named

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.run.pool import Environment
    from flowshare.protocol.decoding import RawRecord

logger = logging.getLogger("flowshare.agents")

FIRST_S: Final = 0.5
LONGEST_S: Final = 10.0
HOLD_S: Final = 10.0
"""So long a record is held for an answer where it may be given back."""
BACK_S: Final = 30.0
"""After so long it comes again."""
TELL_S: Final = 30.0
TROUBLE_S: Final = 60.0
LOOK_S: Final = 0.25
"""How often who waits looks whether the worker stops."""
FETCHES_MAX: Final = 5
"""A codec that still misses what it was given so often is asked all the same, and says why."""


class GivenBack(Exception):
    """A record goes back: what it needs is not to be had now."""

    def __init__(self, what: str, delay_s: float, *, unrun: bool) -> None:
        super().__init__(what)
        self.outcome = Outcome(OutcomeKind.RELEASE, None, f"waits for {what}", delay_s, unrun=unrun)


class Lookups:
    """Those of one agent's pool. The handler loop's, but for what is said of threads."""

    def __init__(self, agent: ShareAgent, environment: Environment) -> None:
        self._agent = agent
        self.clock = environment.clock
        self._inline = environment.inline_threads
        self._may_return = environment.capabilities.delayed_release and agent.group_type == "share"
        self._fetching: dict[Hashable, asyncio.Future[BaseException | None]] = {}
        self._stopped = threading.Event()
        self._told_s = float("-inf")
        self._trouble: tuple[float, str] | None = None
        """When there was no answer, and what waits for it."""

    def stop(self) -> None:
        """The worker stops: what waits goes back. Any thread."""
        self._stopped.set()

    @property
    def trouble(self) -> str | None:
        """Why records wait now; of what has long gone elsewhere nothing is said. Any thread."""
        at_s, text = self._trouble or (float("-inf"), "")
        return text if self.clock.monotonic() - at_s < TROUBLE_S else None

    def missing(self, chunk: Chunk, record: RawRecord) -> Missing | None:
        """What has to be fetched before this record is handled; None: nothing. Any thread."""
        found = _missing(chunk.decode, record.value, record)
        return _missing(chunk.decode_key, record.key, record) if found is None else found

    async def until_known(
        self, ask: Callable[[], Missing | None], chunk: Chunk | None = None, *, begun: bool = False
    ) -> None:
        """Fetch what `ask` says until it says nothing more. chunk: of the record that may go back meanwhile; None: it
        may not. begun: its handler has run.

        Raises: GivenBack.
        """
        wait = _Wait(self, chunk, begun)
        while (missing := ask()) is not None and wait.goes_on(missing):
            error = await self._fetch(missing)
            delay_s = wait.after(missing, error)
            until_s = self.clock.monotonic() + delay_s
            while (left_s := until_s - self.clock.monotonic()) > 0:
                wait.look(missing)
                await self.clock.sleep(min(left_s, LOOK_S))

    def until_known_here(self, ask: Callable[[], Missing | None], chunk: Chunk, *, begun: bool = False) -> None:
        """The same in a thread of its own, which may block."""
        wait = _Wait(self, chunk, begun)
        while (missing := ask()) is not None and wait.goes_on(missing):
            delay_s = wait.after(missing, _tried(missing))
            if delay_s:
                self._pause(delay_s)
                wait.look(missing)

    def _pause(self, delay_s: float) -> None:
        """Until the delay is over, or the worker stops; who may not go back then waits a little all the same."""
        if self._stopped.wait(delay_s):
            threading.Event().wait(LOOK_S)

    async def _fetch(self, missing: Missing) -> BaseException | None:
        """One try, which all who need it share; what went wrong."""
        if self._inline:
            return _tried(missing)
        future = self._fetching.get(missing.key)
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._fetching[missing.key] = loop.create_future()

            def run() -> None:
                error = _tried(missing)
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._fetched, missing.key, error)

            threading.Thread(target=run, name=f"lookup {self._agent.name}", daemon=True).start()
        await asyncio.wait([future])
        return future.result()

    def _fetched(self, key: Hashable, error: BaseException | None) -> None:
        future = self._fetching.pop(key)
        if not future.done():
            future.set_result(error)

    def answered(self) -> None:
        """Whoever was asked answers. Any thread."""
        if self._trouble is not None:
            self._trouble = None
            self._told_s = float("-inf")
            logger.warning("agent=%s: what records waited for is there; they go on", self._agent.name)

    def failed(self, missing: Missing, error: BaseException) -> None:
        """Whoever was asked does not answer. Any thread."""
        text, now_s = f"records wait for {missing.what}: {named(error)}", self.clock.monotonic()
        self._trouble = (now_s, text)

        if now_s >= self._told_s + TELL_S:
            self._told_s = now_s
            logger.error(
                "agent=%s: %s; it is asked again until it answers, and no attempt is used",
                self._agent.name,
                text,
            )

    @property
    def stopped(self) -> bool:
        """Whether the worker stops. Any thread."""
        return self._stopped.is_set()

    def returns(self, chunk: Chunk | None) -> bool:
        """Whether a record of this chunk may be given back without costing an attempt."""
        return self._may_return and chunk is not None and not chunk.is_accepted


class _Wait:
    """One record's waiting: how long, and whether it is over."""

    def __init__(self, lookups: Lookups, chunk: Chunk | None, begun: bool) -> None:
        self._lookups = lookups
        self._chunk = chunk
        self._begun = begun
        self._began_s = lookups.clock.monotonic()
        self._delay_s = FIRST_S
        self._fetched = 0

    def goes_on(self, missing: Missing) -> bool:
        """Whether to fetch."""
        self.look(missing)
        return self._fetched < FETCHES_MAX

    def look(self, missing: Missing) -> None:
        """Raise GivenBack when the worker stops, and the record can go back."""
        if self._lookups.stopped and self._chunk is not None and not self._chunk.is_accepted:
            raise GivenBack(missing.what, 0.0, unrun=not self._begun)

    def after(self, missing: Missing, error: BaseException | None) -> float:
        """Seconds until the next try; 0 after one that was answered. Raises: GivenBack."""
        if error is None:
            self._fetched += 1
            self._lookups.answered()
            return 0.0
        self._lookups.failed(missing, error)
        held_s = self._lookups.clock.monotonic() - self._began_s
        if held_s >= HOLD_S and not self._begun and self._lookups.returns(self._chunk):
            raise GivenBack(missing.what, BACK_S, unrun=True)
        delay_s, self._delay_s = self._delay_s, min(2 * self._delay_s, LONGEST_S)
        return delay_s


def _missing(decode: object, raw: bytes | None, record: RawRecord) -> Missing | None:
    if type(decode) is not CodecDecoder:
        return None
    try:
        return decode.missing(raw, record.headers)
    except Exception:  # noqa: BLE001 - the codec's code: what is wrong it says when it decodes
        return None


def _tried(missing: Missing) -> BaseException | None:
    try:
        missing.fetch()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is tried again
        return error
    return None
