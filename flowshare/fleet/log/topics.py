"""The topics that this worker uses: looked up again and again, by name or by id.

A name becomes *wanted* by the first look for it: that look finds nothing, and the brokers are asked at once. News from
the brokers is believed; not believed at first is that a topic is gone (a broker that has just started may not know of
it yet), and never that it has an id that another one has replaced (told by a broker that was cut off).

    unknown ─found→ known ─not found→ doubted ─not found again, gone_s later→ unknown
                    known, doubted ─found with another id, more partitions→ known; listeners are told
                                                 unknown ─found again, with its last id too→ known
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar, overload

from flowshare.client.errors import Unsupported
from flowshare.fleet.log.lookups import joined
from flowshare.log.base import InvalidTopic, LogError, StorageError, Topic
from flowshare.log.topics import check_name
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import MetadataRequest
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    import uuid

    from flowshare.clock import Clock
    from flowshare.fleet.log.lookups import Lookups
    from flowshare.fleet.log.settings import LogSettings
    from flowshare.protocol.messages import MetadataResponse, TopicMetadata

T = TypeVar("T")
TopicsListener = Callable[[frozenset[str]], object]
"""Gets the names of topics that have appeared, grown, gone or got another id."""

OLD_IDS_MAX: Final = 16
ADVICE: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.NONE: "it has no id: workers need brokers of Kafka 2.8 or newer, inter.broker.protocol.version too",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant the workers' user DESCRIBE and READ on it",
}
ABSENT: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

logger = logging.getLogger(__name__)


class Topics(Mapping[str, Topic]):
    """The known topics, as a mapping; looking for an unknown name makes the name wanted."""

    def __init__(self, asking: Lookups, clock: Clock, settings: LogSettings) -> None:
        self._lookups = asking
        self._clock = clock
        self._settings = settings
        self._known: dict[str, Topic] = {}
        self._last: dict[str, Topic] = {}
        self._wanted: dict[str, None] = {}
        self._fresh: set[str] = set()
        self._doubted: dict[str, float] = {}
        self._old_ids: dict[str, list[uuid.UUID]] = {}
        self._told: dict[str, ErrorCode] = {}
        self._listeners: list[TopicsListener] = []
        self._coming: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._looking: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._alarm = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look topics up."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="topics of Kafka")

    async def close(self) -> None:
        """Stop."""
        await cancelled(*self._coming.values(), *self._looking.values(), self._task)

    def on_change(self, listener: TopicsListener) -> None:
        """Call `listener(names)` after each change."""
        self._listeners.append(listener)

    # --- what is known ------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Topic:
        topic = self.get(name)
        if topic is None:
            raise KeyError(name)
        return topic

    @overload
    def get(self, key: str, /) -> Topic | None: ...
    @overload
    def get(self, key: str, /, default: Topic | T) -> Topic | T: ...
    def get(self, key: str, /, default: Topic | T | None = None) -> Topic | T | None:
        """Return the topic of this name if known; the name is looked up from now on."""
        topic = self._known.get(key)
        if topic is not None:
            return topic
        self._want(key)
        return default

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    # --- looking up ---------------------------------------------------------------------------------------------

    async def refresh(self, names: Collection[str] = (), ids: Collection[uuid.UUID] = ()) -> None:
        """Look up topics now, by name and by id (neither: all wanted ones). Raises StorageError."""
        await self._refresh(names, ids)
        if self._doubted:
            self._alarm.set()

    async def exists(self, topic_id: uuid.UUID) -> bool:
        """True if a topic with this id exists; the topic is known then, unless another one has replaced it. False only
        after two looks, gone_s apart.

        Raises: StorageError (the brokers cannot be asked, or do not say).
        """
        for pause_s in (0.0, self._settings.gone_s):
            await self._clock.sleep(pause_s)
            answer = await self._by_id((topic_id,))
            self._take(answer, ())
            for found in answer.topics:
                if found.error is ErrorCode.NONE:
                    return True
                if found.error not in ABSENT:
                    advice = ADVICE.get(found.error, "it is tried again")
                    raise StorageError(f"no broker says whether topic {topic_id} exists: {found.error.name} ({advice})")
        return False

    async def _refresh(self, names: Collection[str], ids: Collection[uuid.UUID]) -> None:
        for name in names:
            self._want(name, ask=False)
        if names or not ids:
            asked = tuple(name for name in (names or self._wanted) if name in self._wanted)
            if asked:
                await joined(self._look(asked))
        if ids:
            self._take(await self._by_id(tuple(ids)), ())

    def _look(self, names: tuple[str, ...]) -> asyncio.Task[None]:
        """Return a look at these names that has not begun yet, shared by all callers that want one meanwhile."""
        task = self._coming.get(names)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(names, self._looking.get(names)), name="topics")
            self._coming[names] = task
        return task

    async def _ask(self, names: tuple[str, ...], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        task = self._looking[names] = self._coming.pop(names)
        try:
            self._take(await self._lookups.send(MetadataRequest(topics=names)), names)
        finally:
            if self._looking[names] is task:
                del self._looking[names]

    async def _by_id(self, ids: tuple[uuid.UUID, ...]) -> MetadataResponse:
        try:
            answer = await self._lookups.send(MetadataRequest(topics=(), topic_ids=ids))
        except StorageError as error:
            if not isinstance(error.__cause__, Unsupported):
                raise
            # Brokers before 3.1 cannot be asked by id, but tell the ids of all topics.
            answer = await self._lookups.send(MetadataRequest(topics=None))
        return replace(answer, topics=tuple(topic for topic in answer.topics if topic.topic_id in ids))

    def _want(self, name: str, *, ask: bool = True) -> None:
        if name in self._wanted:
            return
        try:
            check_name(name, internal=True)
        except InvalidTopic:
            return
        self._wanted[name] = None
        for oldest in self._wanted:
            if len(self._wanted) <= self._settings.topics_max:
                break
            if oldest not in self._known:
                del self._wanted[oldest]
                self._last.pop(oldest, None)
                break
        if ask:
            self._fresh.add(name)
            self._alarm.set()

    async def _run(self) -> None:
        while True:
            names = tuple(self._fresh)
            self._fresh.clear()
            self._alarm.clear()
            if names or self._wanted:
                try:
                    await self._refresh(names, ())
                except LogError as error:
                    logger.info("topics cannot be looked up now: %s", error)
                except Exception:
                    logger.exception("looking topics up failed, tried again in %g s", self._settings.refresh_s)
            doubted = self._settings.gone_s if self._doubted else self._settings.refresh_s
            timer = self._clock.call_later(doubted, self._alarm.set)
            try:
                await self._alarm.wait()
            finally:
                timer.cancel()

    def _take(self, answer: MetadataResponse, asked: Iterable[str]) -> None:
        """Take over the brokers' answer."""
        changed: set[str] = set()
        left = set(asked)
        for found in answer.topics:
            left.discard(found.name)
            if found.error is ErrorCode.NONE and found.topic_id is not None:
                self._wanted.setdefault(found.name)
                self._told.pop(found.name, None)
                if self._found(found, found.topic_id):
                    changed.add(found.name)
            elif found.error in ABSENT:
                left.add(found.name)
            else:
                self._refused(found)
        changed |= {name for name in left if self._missed(name)}
        if changed:
            for listener in self._listeners:
                try:
                    listener(frozenset(changed))
                except Exception:
                    logger.exception("news of topics could not be told topics=%s", ",".join(sorted(changed)))

    def _found(self, found: TopicMetadata, topic_id: uuid.UUID) -> bool:
        old = self._known.get(found.name)
        if topic_id in self._old_ids.get(found.name, ()):
            return False
        self._doubted.pop(found.name, None)
        if old is not None and old.topic_id == topic_id and found.partitions <= old.partitions:
            return False
        last = self._last.get(found.name)
        if last is not None and last.topic_id != topic_id:
            self._retire(last)
        topic = Topic(name=found.name, topic_id=topic_id, partitions=found.partitions, configs={})
        self._last[found.name] = self._known[found.name] = topic
        return True

    def _missed(self, name: str) -> bool:
        if name not in self._known:
            return False
        now_s = self._clock.monotonic()
        if now_s - self._doubted.setdefault(name, now_s) < self._settings.gone_s:
            return False
        # Its id is not retired: a broker that was behind for long may have told so.
        del self._known[name], self._doubted[name]
        return True

    def _retire(self, topic: Topic) -> None:
        ids = self._old_ids.setdefault(topic.name, [])
        ids.append(topic.topic_id)
        del ids[:-OLD_IDS_MAX]

    def _refused(self, found: TopicMetadata) -> None:
        """Warn once that the brokers refuse to describe a topic; the known facts stay."""
        if self._told.get(found.name) is found.error:
            return
        self._told[found.name] = found.error
        advice = ADVICE.get(found.error, "it is tried again")
        logger.warning("topic %s cannot be looked up: %s (%s)", found.name, found.error.name, advice)
