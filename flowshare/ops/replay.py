"""Replay: dead letters are sent again, as they were, and it is remembered which.

Which letters were replayed, so that a second replay leaves them out, stands where every backend keeps such things: as
committed offsets of a consumer group without members, `<dead-letter topic>.replayed`, the offset of a partition being
the first that was not replayed, and the metadata the runs behind it (`17-20,25`). Brokers forget it a week after the
last replay, unless offsets.retention.minutes says else.

Letters of a parked key (`share.parking`) are no single letters: all that are not settled are sent again, in the order
of their originals, to the partition that they came from, marked as a replay that was begun at the share group. One
without its record is replayed with the record as it is at its place, where it still is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from flowshare.agents.handler.texts import amount, said
from flowshare.client.errors import ClientError, IllegalState, ServerError, Unsupported
from flowshare.ops import Failure
from flowshare.ops.letters import ROUND, is_own, letter_of, place_text, read_letters, text_of
from flowshare.ops.session import CommandSession
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.key_hash import KeyOrder, key_name
from flowshare.protocol.private import REPLAY_HEADER
from flowshare.share.parking import Mark, ParkedKey
from flowshare.share.ranges import Range, merged

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.producer.producer import Message
    from flowshare.protocol.messages import ParkedKeyTold

K = TypeVar("K")

REPLAYED: Final = ".replayed"
KEYS_AT_ONCE: Final = 1_000
"""Parked keys that are replayed at once, for which the letters are read through once."""
ASKED_AT_ONCE: Final = 50
STEPS_A_SECOND: Final = 10
"""How finely a replay at a rate is divided."""
REFUSALS_SHOWN: Final = 5
"""The most letters that cannot be sent and are named."""
REFUSAL_MAX: Final = 300
"""Characters of the reason why a letter cannot be sent."""
METADATA_MAX: Final = 4000
"""Characters of metadata: brokers take 4,096 bytes (offset.metadata.max.bytes)."""


class KeyAt(NamedTuple):
    """A key of a share-partition, by its name (`key_name`)."""

    group: str
    topic: str
    partition: int
    key: bytes


class ParkedReplay(NamedTuple):
    """A parked key that was replayed. gone: offsets of originals whose letters should be there and are not."""

    at: KeyAt
    letters: int
    gone: tuple[int, ...] = ()


class Replay:
    """Sends letters again in rounds, and remembers how far it came."""

    def __init__(
        self,
        session: CommandSession,
        topic: str,
        target: str | None,
        *,
        dry_run: bool,
        again: bool,
        per_s: float | None = None,
    ) -> None:
        """target: where to; None: where each came from. again: those too that were replayed before. per_s: letters a
        second at most; None: as fast as it goes."""
        self._session = session
        self._per_s = per_s
        self._again = again
        self.before = Replayed(session.admin, topic)
        self.left_out = 0
        """Letters that were replayed before."""
        self._topic = topic
        self._target = target
        self._dry_run = dry_run
        self._last: dict[int, int] = {}
        self.bare = 0
        """Letters without their record."""
        self.refused = 0
        """Letters that cannot be sent (too large, or for a topic that cannot be made), and parked keys with such."""
        self._refusals: list[str] = []
        """The first refused letters and keys, each with the reason."""
        self._pending: list[dict[str, Any]] = []
        self.sent: dict[str, int] = {}
        self._parked = ParkedLookup(session.admin)
        self._parked_wanted: set[KeyAt] = set()
        self.parked: list[ParkedReplay] = []
        self.done = 0
        """Letters that are sent."""
        self.lost: set[tuple[int, int]] = set()
        """Letters without their record, which is not at its place any more: whose they were, nobody knows."""
        self.settled = 0
        """Letters of parked keys that are older than what is parked, or were settled since."""
        self.kept: dict[int, int] = {}
        """By partition the first letter of a parked key: it may have to be replayed once more."""

    async def run_all(
        self, picked: frozenset[tuple[int, int]], wanted: Callable[[Mapping[str, Any]], bool], limit: int | None
    ) -> None:
        """These letters, by partition and offset, or those that are wanted; then whole parked keys. Raises: Failure."""
        try:
            if picked:
                await self.pick(picked)
            else:
                await self.run(wanted, limit)
            await self.run_parked()
        except asyncio.CancelledError:
            told = amount(self.done, "letter was", "letters were")
            self._session.reporter.tell(f"{told} replayed; another replay goes on with the rest")
            raise

    def _at_once(self, most: int) -> int:
        """How many are sent before it may be interrupted again: what takes about a second."""
        return most if self._per_s is None else max(1, min(most, int(self._per_s)))

    async def run(self, wanted: Callable[[Mapping[str, Any]], bool], limit: int | None) -> None:
        with self._session.reporter.bar(f"replaying {self._topic}", limit) as step:
            async for letter in read_letters(self._session, self._topic):
                if limit is not None and self._taken() >= limit:
                    break
                if wanted(letter) and not await self._of_parked_key(letter) and self._fresh(letter):
                    await self._add(letter)
                    step(1)
            await self._flush()

    def _taken(self) -> int:
        """How many are sent or to be sent, a parked key being one."""
        return sum(self.sent.values()) + len(self._pending) + len(self._parked_wanted)

    async def pick(self, places: Iterable[tuple[int, int]]) -> None:
        """Send these letters only, by partition and offset. Raises: Failure."""
        for partition, offset in sorted(places):
            found = await self._session.admin.read(self._topic, partition, offset, limit=1)
            if not found or found[0].offset != offset:
                raise Failure(
                    f"there is no letter at {self._topic}-{partition}@{offset}; `flowshare dlq show` lists them"
                )
            letter = letter_of(self._topic, partition, found[0])
            if not await self._of_parked_key(letter) and self._fresh(letter):
                await self._add(letter)
        await self._flush()

    async def _of_parked_key(self, letter: Mapping[str, Any]) -> bool:
        """Tell if a letter belongs to a parked key; such a key is then replayed as a whole by `run_parked`."""
        at = None if self._target else await self._parked.of(await self._with_record(letter))
        if at is None:
            return False
        if not _is_of(letter, self._parked.known(at).parked):
            self.settled += self._fresh(letter)
            return True
        self._parked_wanted.add(at)
        place = letter["letter_partition"]
        self.kept[place] = min(self.kept.get(place, letter["letter_offset"]), letter["letter_offset"])
        return True

    async def _with_record(self, letter: Mapping[str, Any]) -> Mapping[str, Any]:
        """A letter as it is; of one without its record that may be of a parked key, with the record from its place."""
        if not letter["left_out"] or not await self._parked.may_be(letter):
            return letter
        topic, partition, offset = letter["topic"], int(letter["partition"]), int(letter["offset"])
        found = await self._session.admin.read(topic, partition, offset, limit=1)
        if not found or found[0].offset != offset:
            self.lost.add((letter["letter_partition"], letter["letter_offset"]))
            return letter
        (record,) = found
        headers = (*record.headers, *letter["headers"])
        return {**letter, "raw_key": record.key, "raw_value": record.value, "headers": headers, "left_out": ""}

    def _fresh(self, letter: Mapping[str, Any]) -> bool:
        if self._again or (letter["letter_partition"], letter["letter_offset"]) not in self.before:
            return True
        self.left_out += 1
        return False

    async def delete(self) -> None:
        """Delete up to the last letter that was sent. Raises: Failure."""
        if self.bare:
            raise Failure(f"nothing is deleted: {why_bare(self.bare)}")
        if self.refused:
            raise Failure(f"nothing is deleted: {self.why_refused()}")
        for partition, offset in self._last.items():
            end = min(offset + 1, self.kept.get(partition, offset + 1))
            await self._session.admin.delete_records(self._topic, partition, end)

    def why_refused(self) -> str:
        """Say how many letters and keys cannot be sent, which the first ones are, and why."""
        more = self.refused - len(self._refusals)
        text = f"{self.refused} cannot be sent: {'; '.join(self._refusals)}"
        return f"{text}; and {more} more" if more else text

    async def run_parked(self) -> None:
        """Replay the parked keys of which a letter was wanted. Raises: Failure."""
        wanted = sorted(self._parked_wanted)
        with self._session.reporter.bar("replaying parked keys", len(wanted)) as step:
            at_once = self._at_once(KEYS_AT_ONCE)
            for first in range(0, len(wanted), at_once):
                some = wanted[first : first + at_once]
                await self._replay_keys(await self._begun(some))
                step(len(some))

    async def _begun(self, keys: Sequence[KeyAt]) -> dict[KeyAt, ParkedKeyTold]:
        """Begin a replay of each key, and return what is known of it."""
        if self._dry_run:
            return {at: self._parked.known(at) for at in keys}
        begun: dict[KeyAt, ParkedKeyTold] = {}
        change = self._session.admin.change_parked_key
        for first in range(0, len(keys), ASKED_AT_ONCE):
            some = keys[first : first + ASKED_AT_ONCE]
            told = await asyncio.gather(*(change(at.group, "replay", at.topic, at.partition, at.key) for at in some))
            # None: somebody has settled it meanwhile, or let it go on
            begun.update({at: one for at, one in zip(some, told, strict=True) if one is not None})
        return begun

    async def _replay_keys(self, begun: Mapping[KeyAt, ParkedKeyTold]) -> None:
        """Send the letters of these keys that are not settled."""
        if not begun:
            return
        # Read after the replays began: each letter up to `last` is there by then.
        found: dict[KeyAt, dict[int, Mapping[str, Any]]] = {at: {} for at in begun}
        places: dict[KeyAt, list[tuple[int, int]]] = {at: [] for at in begun}
        async for read in read_letters(self._session, self._topic):
            letter = await self._with_record(read)
            at = None if letter["left_out"] else await self._parked.of(letter)
            if at is not None and at in begun and _is_of(letter, begun[at].parked):
                found[at][int(letter["offset"])] = letter  # the last one of an original is the one that counts
                places[at].append((letter["letter_partition"], letter["letter_offset"]))
        to_send: dict[KeyAt, list[Message]] = {}
        for at, told in begun.items():
            letters = [letter for _, letter in sorted(found[at].items())]
            if letters:
                self._note_parked(at, told, letters)
                to_send[at] = _marked(at, told, letters)
        if not self._dry_run and to_send:
            await whole(self._send_letters(to_send, places))

    def _note_parked(self, at: KeyAt, told: ParkedKeyTold, letters: Sequence[Mapping[str, Any]]) -> None:
        known = {one for one in (told.parked.first, told.parked.last) if one > told.parked.done}
        gone = tuple(sorted(known.difference(int(letter["offset"]) for letter in letters)))
        self.sent[at.topic] = self.sent.get(at.topic, 0) + len(letters)
        self.parked.append(ParkedReplay(at, len(letters), gone))

    async def _send_letters(
        self, to_send: Mapping[KeyAt, list[Message]], places: Mapping[KeyAt, list[tuple[int, int]]]
    ) -> None:
        """Send keys' letters, and remember those of keys that were sent whole; the others stay parked."""
        for topic in dict.fromkeys(at.topic for at in to_send):
            keys = [at for at in to_send if at.topic == topic]
            failed = await self._send(topic, [(at, message) for at in keys for message in to_send[at]])
            await self.before.add([place for at in keys if at not in failed for place in places[at]])
            for at, error in failed.items():
                where = f"{at.topic}-{at.partition}, where it stays parked"
                self._refuse(f"the parked key {text_of(at.key)} of group {at.group} in {where}", error)
                self._uncount(topic, len(to_send[at]))
                self.parked = [one for one in self.parked if one.at != at]

    async def _send(self, topic: str, messages: Sequence[tuple[K, Message]]) -> dict[K, ClientError]:
        """Send what belongs to something; the first error of each that was not sent whole."""
        outcomes: list[Any] = []
        step = len(messages) if self._per_s is None else max(1, int(self._per_s / STEPS_A_SECOND))
        for first in range(0, len(messages), step):
            some = [message for _, message in messages[first : first + step]]
            try:
                outcomes += await self._session.producer.send_many(topic, some, return_exceptions=True)
            except ClientError as error:  # the topic's: it holds for all that are left
                outcomes += [error] * (len(messages) - len(outcomes))
                break
            if self._per_s is not None:
                await self._session.clock.sleep(len(some) / self._per_s)
        failed: dict[K, ClientError] = {}
        for (whose, _), outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, ClientError):
                failed.setdefault(whose, outcome)
            else:
                self.done += 1
        return failed

    async def _add(self, letter: dict[str, Any]) -> None:
        if letter["left_out"]:
            self.bare += 1
            return
        if not self._target and not letter["topic"]:
            raise Failure(f"{place_text(letter)} does not say where it came from; name a topic with --to")
        if self._dry_run:
            self._count(letter)
            return
        self._pending.append(letter)
        if len(self._pending) >= self._at_once(ROUND):
            await self._flush()

    def _count(self, letter: Mapping[str, Any]) -> str:
        """Count a letter that is sent; where to."""
        to = self._target or letter["topic"]
        self.sent[to] = self.sent.get(to, 0) + 1
        self._last[letter["letter_partition"]] = letter["letter_offset"]
        return str(to)

    async def _flush(self) -> None:
        await whole(self._send_pending())

    async def _send_pending(self) -> None:
        from flowshare.client.producer.producer import Message

        pending, self._pending = self._pending, []
        if not pending:
            return
        self._parked.forget()  # a key may have been parked since: a letter of it that came alone would be a second one
        to_send: dict[str, list[tuple[tuple[int, int], Message]]] = {}
        for letter in pending:
            if await self._of_parked_key(letter):
                continue
            headers = tuple(pair for pair in letter["headers"] if not is_own(pair[0]))
            message = Message(letter["raw_value"], letter["raw_key"], headers)
            place = (letter["letter_partition"], letter["letter_offset"])
            to_send.setdefault(self._count(letter), []).append((place, message))
        for name, messages in to_send.items():
            failed = await self._send(name, messages)
            if sent := [place for place, _ in messages if place not in failed]:
                await self.before.add(sent)
            for place, error in failed.items():
                partition, offset = place
                self._refuse(f"{self._topic}-{partition}@{offset}", error)
                self._uncount(name, 1)

    def _refuse(self, what: str, error: ClientError) -> None:
        """Count a letter or key that cannot be sent, so that the others can. Raises: an error that is of neither."""
        from flowshare.client.producer.channel import out_of_time

        if out_of_time(error) or isinstance(error, IllegalState):
            raise error
        self.refused += 1
        if len(self._refusals) < REFUSALS_SHOWN:
            self._refusals.append(f"{what} ({said(error, REFUSAL_MAX)})")

    def _uncount(self, to: str, letters: int) -> None:
        self.sent[to] -= letters
        if not self.sent[to]:
            del self.sent[to]


def why_bare(count: int) -> str:
    return (
        f"{count} without the record, which was too large for this topic, cannot be replayed: read it where the letter "
        "says it was (flowshare dlq show)"
    )


async def whole(step: Coroutine[Any, Any, None]) -> None:
    """Do it to its end, though the command is interrupted: what is sent and not remembered would be sent again."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def _marked(at: KeyAt, told: ParkedKeyTold, letters: Sequence[Mapping[str, Any]]) -> list[Message]:
    """A key's letters as the records of its replay, in order."""
    from flowshare.client.producer.producer import Message

    messages: list[Message] = []
    parked = told.parked
    after = parked.done
    for letter in letters:
        original = int(letter["offset"])
        mark = Mark(parked.version, original, parked.last if letter is letters[-1] else original, after)
        after = original
        headers = [pair for pair in letter["headers"] if not is_own(pair[0])]
        headers.append((REPLAY_HEADER, mark.encode(at.group, told.topic_id, at.partition)))
        messages.append(Message(letter["raw_value"], letter["raw_key"], tuple(headers), None, at.partition))
    return messages


def _has_place(letter: Mapping[str, Any]) -> bool:
    return bool(letter["group"]) and letter["partition"].isdecimal() and letter["offset"].isdecimal()


def _is_from(letter: Mapping[str, Any], told: ParkedKeyTold) -> bool:
    """Tell if a letter is of this topic, and not of an earlier one with the same name."""
    return letter["topic_id"] in ("", str(told.topic_id))


def _is_of(letter: Mapping[str, Any], parked: ParkedKey) -> bool:
    """Tell if this letter of a parked key is one of those that are not settled."""
    return parked.done < int(letter["offset"]) <= parked.last


class ParkedOf(NamedTuple):
    """The parked keys of a group. spans: by topic and partition, one entry that covers all unsettled offsets there."""

    order: KeyOrder | None
    keys: Mapping[KeyAt, ParkedKeyTold]
    spans: Mapping[tuple[str, int], ParkedKeyTold]


def _spans(keys: Iterable[ParkedKeyTold]) -> dict[tuple[str, int], ParkedKeyTold]:
    spans: dict[tuple[str, int], ParkedKeyTold] = {}
    for one in keys:
        span = spans.setdefault((one.topic, one.partition), one)
        done, last = min(span.parked.done, one.parked.done), max(span.parked.last, one.parked.last)
        spans[one.topic, one.partition] = span._replace(parked=span.parked._replace(done=done, last=last))
    return spans


class ParkedLookup:
    """Which letters are of parked keys; each group is asked once."""

    def __init__(self, admin: ShareAdmin) -> None:
        self._admin = admin
        self._groups: dict[str, ParkedOf] = {}

    def forget(self) -> None:
        """Ask the groups anew."""
        self._groups.clear()

    async def of(self, letter: Mapping[str, Any]) -> KeyAt | None:
        """The parked key of a letter; None: it is of none."""
        if not _has_place(letter):
            return None
        order, keys, _ = await self._of_group(letter["group"])
        if order is None or not keys:
            return None
        key = order.key_of_parts(letter["raw_key"], letter["headers"])
        at = None if key is None else KeyAt(letter["group"], letter["topic"], int(letter["partition"]), key_name(key))
        return at if at is not None and at in keys and _is_from(letter, keys[at]) else None

    async def may_be(self, letter: Mapping[str, Any]) -> bool:
        """Tell if a letter without its record may belong to a parked key that is not settled."""
        if not _has_place(letter):
            return False
        of_group = await self._of_group(letter["group"])
        span = of_group.spans.get((letter["topic"], int(letter["partition"])))
        return span is not None and _is_from(letter, span) and _is_of(letter, span.parked)

    def known(self, at: KeyAt) -> ParkedKeyTold:
        """Return the state of a parked key as its group reported it."""
        return self._groups[at.group].keys[at]

    async def _of_group(self, group: str) -> ParkedOf:
        if group not in self._groups:
            order = ""
            keys: dict[KeyAt, ParkedKeyTold] = {}
            try:
                told = await self._admin.parked_keys(group)
                order = told.order
                keys = {KeyAt(group, one.topic, one.partition, one.key): one for one in told.keys}
            except Unsupported:  # brokers have no parked keys
                pass
            except ServerError as error:  # nor has a group that was deleted; else a letter of one must not go out loose
                if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
            self._groups[group] = ParkedOf(KeyOrder.parse(order), keys, _spans(keys.values()))
        return self._groups[group]


class Replayed:
    """The replayed letters of one dead-letter topic."""

    def __init__(self, admin: ShareAdmin, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._runs: dict[int, list[Range]] = {}

    async def load(self) -> None:
        """Read what is remembered."""
        for part in await self._admin.committed_offsets(self._topic + REPLAYED):
            if part.topic == self._topic and part.offset >= 0:
                self._runs[part.partition] = merged(
                    [*([(0, part.offset - 1)] if part.offset else []), *parse(part.metadata)]
                )

    def count(self, partition: int, start: int, end: int) -> int:
        """How many offsets from `start` to before `end` were replayed."""
        runs = self._runs.get(partition, ())
        return sum(max(0, min(last + 1, end) - max(first, start)) for first, last in runs)

    def __contains__(self, place: tuple[int, int]) -> bool:
        """Tell if the letter at this partition and offset was replayed."""
        partition, offset = place
        return any(first <= offset <= last for first, last in self._runs.get(partition, ()))

    async def check(self) -> None:
        """Check that replayed letters can be remembered, before any is sent. Raises: ServerError (no right to write the
        group)."""
        await self._commit(self._runs or {0: []})

    async def add(self, places: list[tuple[int, int]]) -> None:
        """Remember letters, by partition and offset."""
        for partition, offset in places:
            self._runs[partition] = merged([*self._runs.get(partition, ()), (offset, offset)])
        await self._commit({partition for partition, _ in places})

    async def _commit(self, partitions: Iterable[int]) -> None:
        from flowshare.protocol.messages import OffsetToCommit

        commits = []
        for partition in sorted(partitions):
            runs = self._runs.get(partition, [])
            start = (await self._admin.offsets(self._topic, partition)).log_start
            runs = merged([*([(0, start - 1)] if start else []), *runs])  # what is deleted needs no run of its own
            behind = runs[0][1] + 1 if runs and runs[0][0] == 0 else 0
            text = format_runs([run for run in runs if run[0] >= behind])
            commits.append(OffsetToCommit(self._topic, partition, behind, -1, text))
        await self._admin.commit_offsets(self._topic + REPLAYED, commits)


async def replayed_in(admin: ShareAdmin, topic: str) -> Replayed | None:
    """Load the replayed letters of a topic, for commands that only read; None: the server refused to tell."""
    found = Replayed(admin, topic)
    try:
        await found.load()
    except ServerError:
        return None
    return found


def format_runs(runs: list[Range]) -> str:
    """Runs as text, the newest as far as there is room."""
    texts: list[str] = []
    room = METADATA_MAX
    for first, last in reversed(runs):
        text = str(first) if first == last else f"{first}-{last}"
        room -= len(text) + 1
        if room < 0:
            break
        texts.append(text)
    return ",".join(reversed(texts))


def parse(text: str) -> list[Range]:
    """Parse the output of `format_runs`; skip everything else."""
    runs: list[Range] = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            runs.append((int(first), int(last or first)))
    return runs
