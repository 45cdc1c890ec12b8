"""Look-ups that codecs need before a record is handled or an output written, such as a schema in its registry.

A runner that needs a look-up waits for it with its record in hand, whose lock is renewed: no attempt is used, the
handler's `timeout` does not run, and other runners go on meanwhile. Each look-up is made once at a time, in a thread,
and repeated until there is an answer:

    needed ──fetched──▶ the record is handled (if the thing does not exist, the codec says so: a dead letter)
           ──no answer──▶ again after 0.5 s, doubling to 10 s; an error in the log, repeated every 30 s
                          after 10 s, if a release costs no attempt: given back for 30 s, others get the runner
           ──the worker stops──▶ given back at once; if its handler has run, that costs the attempt

So at most `concurrency` records wait here, and behind them the records that are fetched ahead.
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
from flowshare.backoff import Backoff

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.run.pool import Environment
    from flowshare.protocol.decoding import RawRecord

logger = logging.getLogger("flowshare.agents")

PAUSES: Final = Backoff(0.5, 10.0)
HOLD_S: Final = 10.0
"""Seconds that a record is held for an answer where it may be released."""
BACK_S: Final = 30.0
"""Seconds until a released record comes again."""
TELL_S: Final = 30.0
TROUBLE_S: Final = 60.0
LOOK_S: Final = 0.25
"""Seconds between two looks of a waiter for the stop of the worker."""
FETCHES_MAX: Final = 5
"""Most fetches for one record; after that the codec is called all the same, and says why."""


class GivenBack(Exception):
    """A record is released: a look-up that it needs cannot be made now."""

    def __init__(self, what: str, delay_s: float, *, unrun: bool) -> None:
        super().__init__(what)
        self.outcome = Outcome(OutcomeKind.RELEASE, None, f"waits for {what}", delay_s, unrun=unrun)


class Lookups:
    """Look-ups of one agent's pool. On the handler loop, unless a method says otherwise."""

    def __init__(self, agent: ShareAgent, environment: Environment) -> None:
        self._agent = agent
        self.clock = environment.clock
        self._inline = environment.inline_threads
        self._may_return = environment.capabilities.delayed_release and agent.group_type == "share"
        self._fetching: dict[Hashable, asyncio.Future[BaseException | None]] = {}
        self._stopped = threading.Event()
        self._told_s = float("-inf")
        self._trouble: tuple[float, str] | None = None
        """Time of the last failure, and its text."""

    def stop(self) -> None:
        """Release waiting records as the worker stops. Any thread."""
        self._stopped.set()

    @property
    def trouble(self) -> str | None:
        """Reason why records wait now; old failures are left out. Any thread."""
        at_s, text = self._trouble or (float("-inf"), "")
        return text if self.clock.monotonic() - at_s < TROUBLE_S else None

    def missing(self, chunk: Chunk, record: RawRecord) -> Missing | None:
        """Return the look-up that is needed before this record is handled; None: none is needed. Any thread."""
        found = _missing(chunk.decode, record.value, record)
        return _missing(chunk.decode_key, record.key, record) if found is None else found

    async def until_known(
        self, ask: Callable[[], Missing | None], chunk: Chunk | None = None, *, begun: bool = False
    ) -> None:
        """Fetch what `ask` returns until it returns None. chunk: of the record that may be released meanwhile; None: it
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
        """Fetch as `until_known`, in a thread of its own, which may block."""
        wait = _Wait(self, chunk, begun)
        while (missing := ask()) is not None and wait.goes_on(missing):
            delay_s = wait.after(missing, _tried(missing))
            if delay_s:
                self._pause(delay_s)
                wait.look(missing)

    def _pause(self, delay_s: float) -> None:
        """Wait for the delay, or for the worker's stop; after a stop wait a little all the same."""
        if self._stopped.wait(delay_s):
            threading.Event().wait(LOOK_S)

    async def _fetch(self, missing: Missing) -> BaseException | None:
        """Try once, shared by all waiters; return the error."""
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
        """Note that the other side answers. Any thread."""
        if self._trouble is not None:
            self._trouble = None
            self._told_s = float("-inf")
            logger.warning("agent=%s: what records waited for is there; they go on", self._agent.name)

    def failed(self, missing: Missing, error: BaseException) -> None:
        """Note and log that the other side does not answer. Any thread."""
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
        """True if the worker stops. Any thread."""
        return self._stopped.is_set()

    def returns(self, chunk: Chunk | None) -> bool:
        """Tell if a record of this chunk may be released without costing an attempt."""
        return self._may_return and chunk is not None and not chunk.is_accepted


class _Wait:
    """One record's wait: its length, and if it is over."""

    def __init__(self, lookups: Lookups, chunk: Chunk | None, begun: bool) -> None:
        self._lookups = lookups
        self._chunk = chunk
        self._begun = begun
        self._began_s = lookups.clock.monotonic()
        self._failures = self._fetched = 0

    def goes_on(self, missing: Missing) -> bool:
        """Tell if the look-up should be tried (again). Raises: GivenBack."""
        self.look(missing)
        return self._fetched < FETCHES_MAX

    def look(self, missing: Missing) -> None:
        """Check if the worker stops and the record can be released. Raises: GivenBack."""
        if self._lookups.stopped and self._chunk is not None and not self._chunk.is_accepted:
            raise GivenBack(missing.what, 0.0, unrun=not self._begun)

    def after(self, missing: Missing, error: BaseException | None) -> float:
        """Return seconds until the next try; 0 after an answer. Raises: GivenBack."""
        if error is None:
            self._fetched += 1
            self._lookups.answered()
            return 0.0
        self._lookups.failed(missing, error)
        held_s = self._lookups.clock.monotonic() - self._began_s
        if held_s >= HOLD_S and not self._begun and self._lookups.returns(self._chunk):
            raise GivenBack(missing.what, BACK_S, unrun=True)
        self._failures += 1
        return PAUSES.after(self._failures)


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
