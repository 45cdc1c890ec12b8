"""Outcomes record by record, at the source: receives them from a sink's process, and acknowledges them.

Each source listens on a socket in a folder of this user on the driver's machine, named after its broker and group.
Several queries of one group listen side by side: each acknowledges the records that it holds, and gives the facts that
executors need for dead letters (`flowshare.spark.source.dead_letters`). Other users cannot open the folder, and both
sides prove that they know the key in it. Users write outcomes with `flowshare.spark.sink.outcomes`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.core_errors import FlowshareError
from flowshare.forks import hold_alone
from flowshare.log.folder import OwnFolder
from flowshare.share.types import AcknowledgeType
from flowshare.spark.source.dead_letters import SourceFacts
from flowshare.spark.source.member import RangeAck
from flowshare.spark.source.options import digest
from flowshare.spark.source.ranges import Place, Range, merged, records_in

if TYPE_CHECKING:
    from flowshare.spark.source.member import GroupMember
    from flowshare.spark.source.options import SourceOptions

ANSWER_S: Final = 60.0
CLOSE_S: Final = 5.0
KEY_BYTES: Final = 32
BASE_BYTES: Final = 55
"""The longest folder name, in bytes, that leaves room for a socket's: the path has 107 bytes on Linux, 103 on macOS."""

logger = logging.getLogger("flowshare.spark")


class RangeOutcome(NamedTuple):
    """Outcome of the offsets `first` to `last`. delay: seconds. buried: their dead letters are confirmed."""

    topic: str
    partition: int
    first: int
    last: int
    kind: str
    delay: float = 0.0
    reason: str = ""
    buried: bool = False

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition


class OutcomesLost(FlowshareError, RuntimeError):
    """No source of the group accepted the outcomes."""


class OutcomeListener:
    """The source's end: calls `take` in a thread for outcomes from sinks, and `tell` for their questions."""

    def __init__(
        self, broker: str, group: str, take: Callable[[list[RangeOutcome]], int], tell: Callable[[], Any]
    ) -> None:
        """take: acknowledges outcomes, and returns the number of records. tell: returns facts for sinks. Raises:
        OSError."""
        folder = _folder(broker, group)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        self._take, self._tell = take, tell
        self._key = _key(folder)
        self._listener = Listener(str(self._path), family="AF_UNIX", authkey=self._key)
        hold_alone(self._listener._listener._socket.fileno())  # type: ignore[attr-defined]  # noqa: SLF001 - it tells none
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="flowshare outcomes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; outcomes being received are finished first, for CLOSE_S at most."""
        self._closed.set()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:
            knock.connect(str(self._path))  # closing a socket does not wake who waits at it
        self._thread.join(CLOSE_S)
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                try:
                    connection = self._listener.accept()
                except (OSError, EOFError, AuthenticationError) as error:  # gone meanwhile, or without the key
                    logger.log(
                        logging.DEBUG if self._closed.is_set() else logging.WARNING, "nobody gave outcomes: %r", error
                    )
                    continue
                with connection:
                    self._answer(connection)

    def _answer(self, connection: Connection[Any, Any]) -> None:
        try:
            if connection.poll(ANSWER_S):
                outcomes = connection.recv()
                connection.send(self._tell() if outcomes is None else self._take(outcomes))
        except Exception:  # the sink finds the connection closed, and its batch comes again
            logger.exception("outcomes were not taken")


def deliver(broker: str, group: str, outcomes: Sequence[RangeOutcome]) -> int:
    """Give outcomes to the sources of a group; return the number of records that they acknowledged. Raises:
    OutcomesLost."""
    taken = _call(broker, group, list(outcomes))
    if not taken:
        raise no_source(group)
    return sum(taken)


def ask(broker: str, group: str) -> list[Any]:
    """Ask the group's sources on this machine for their facts; empty if there is no source. Raises: OutcomesLost."""
    return _call(broker, group, None)


def no_source(group: str) -> OutcomesLost:
    """Return the error for a group without a source for outcomes."""
    return OutcomesLost(
        f"no query on this machine reads group {group} with outcomes; set .option('outcomes', 'true') on its source, "
        "or source={'outcomes': True} on the pipeline"
    )


def _call(broker: str, group: str, message: list[RangeOutcome] | None) -> list[Any]:
    """Return the answers of the group's sources. Raises: OutcomesLost."""
    folder = _folder(broker, group)
    key = _key(folder)
    answers = []
    for path in sorted(folder.glob("*.sock")):
        try:
            with Client(str(path), family="AF_UNIX", authkey=key) as connection:
                connection.send(message)
                if not connection.poll(ANSWER_S):
                    raise OutcomesLost(f"the source of group {group} did not answer within {ANSWER_S:g} s")
                answers.append(connection.recv())
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)  # of a process that was killed
        except (OSError, EOFError) as error:
            raise OutcomesLost(f"the source of group {group} is gone: {error}") from error
    return answers


def _folder(broker: str, group: str) -> Path:
    return _private(user_folder() / digest(broker, group))


def user_folder() -> Path:
    """Return this user's folder among the temporary ones, or in /tmp if its path is too long for sockets. Other users
    cannot open it. Raises: NotPrivate, OSError."""
    name = f"flowshare-spark-{os.getuid()}"
    base = Path(tempfile.gettempdir()) / name
    return _private(base if len(os.fsencode(base)) <= BASE_BYTES else Path("/tmp", name))  # noqa: S108 - see `_private`


def _private(folder: Path) -> Path:
    with OwnFolder.own(folder) as own:
        return own.path


def _key(folder: Path) -> bytes:
    """Return the key of a folder, created by the first caller."""
    with OwnFolder.own(folder) as own:
        try:
            return own.read("key")
        except FileNotFoundError:
            own.make("key", secrets.token_bytes(KEY_BYTES))
        return own.read("key")


TYPES = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
}


class MemberOutcomes:
    """Acknowledges outcomes for one member. Methods run in the listener's thread."""

    def __init__(self, options: SourceOptions, member: GroupMember) -> None:
        self._options = options
        self._member = member

    def tell(self) -> SourceFacts:
        """Return the facts that executors need for dead letters."""
        held = merged(self._member.all_held())
        return SourceFacts(self._member.hosts, self._options.dead_letter_topic, tuple(held))

    def take(self, outcomes: Sequence[RangeOutcome]) -> int:
        """Acknowledge the outcomes of records that this member holds; return the number of records.

        Records lost meanwhile come again, and earlier outcomes stay: a batch may give its outcomes twice.
        Raises: ClientError, OSError: the group is not reached.
        """
        acks: dict[Range, RangeAck] = {}
        held = self._member.held(Range(*one.place, one.first, one.last) for one in outcomes)
        for one, pieces in zip(outcomes, held, strict=True):
            # Kafka's brokers from 4.4 on write a letter of every reject if the group names a topic for them.
            kind = "accept" if one.buried and not self._member.letters_by_choice else one.kind
            acks |= dict.fromkeys(pieces, RangeAck(TYPES[kind], round(one.delay * 1000)))
        refused = self._member.acknowledge(acks)
        if refused:
            logger.warning(
                "group %s: outcomes of %d records came too late, they run again",
                self._options.group,
                records_in(refused),
            )
        return records_in(acks) - records_in(refused)
