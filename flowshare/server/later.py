"""The families of APIs that share agents alone never ask for: imported and made at the first of their requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flowshare.clock import Clock
    from flowshare.log.base import Storage
    from flowshare.server.classic import ClassicGroups
    from flowshare.server.connection import Handler, Handlers
    from flowshare.server.share_service import ShareService
    from flowshare.server.transactions import Transactions


class Family(Protocol):
    """Answers several kinds of requests."""

    def handlers(self) -> Handlers:
        """What this family answers."""
        ...


class Table(dict[type[Any], "Handler"]):
    """All handlers of a server by class of request, those of `later` from their first request on.

    later: module of messages -> makes the families that answer them.
    """

    def __init__(self, families: Iterable[Family], later: Mapping[str, Callable[[], Iterable[Family]]]) -> None:
        super().__init__()
        self._later = dict(later)
        self._add(families)

    def __missing__(self, request: type[Any]) -> Handler:
        """Raises: KeyError (nobody answers it)."""
        self._add(self._later.pop(request.__module__)())
        return self[request]

    def _add(self, families: Iterable[Family]) -> None:
        for family in families:
            self.update(family.handlers())


@dataclass(frozen=True)
class Later:
    """Makes the families of one server from its parts."""

    storage: Storage
    clock: Clock
    share: ShareService
    classic: ClassicGroups
    transactions: Transactions

    def by_messages(self) -> Mapping[str, Callable[[], Iterable[Family]]]:
        """Module of messages -> makes what answers them."""
        package = "flowshare.protocol.messages"
        return {
            f"{package}.classic": self._classic,
            f"{package}.offsets": self._offsets,
            f"{package}.records": self._records,
            f"{package}.state": self._state,
            f"{package}.transactions": self._transactions,
        }

    def _classic(self) -> Iterable[Family]:
        from flowshare.server.classic_members import ClassicMemberApis
        from flowshare.server.classic_offsets import ClassicOffsetApis

        return (
            ClassicMemberApis(self.classic),
            ClassicOffsetApis(self.classic, check=self.transactions.check_offsets),
        )

    def _offsets(self) -> Iterable[Family]:
        from flowshare.server.share_offsets import ShareOffsetApis

        return (
            ShareOffsetApis(
                log=self.storage,
                topics=self.share.topics,
                leaders=self.share.leaders,
                coordinator=self.share.coordinator,
                clock=self.clock,
            ),
        )

    def _records(self) -> Iterable[Family]:
        from flowshare.server.records import RecordApis

        return (RecordApis(self.storage, self.clock, admission=self.transactions.admission),)

    def _state(self) -> Iterable[Family]:
        from flowshare.server.share_state import ShareStateApis

        return (ShareStateApis(store=self.storage, topics=self.share.topics, partitions=self.share.partitions),)

    def _transactions(self) -> Iterable[Family]:
        from flowshare.server.transaction_apis import TransactionApis

        return (TransactionApis(transactions=self.transactions, log=self.storage, clock=self.clock),)
