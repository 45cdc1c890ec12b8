"""Who may do what to which thing: bindings, and the rules by which Kafka's authorizer reads them.

The words are Kafka's (`protocol.rights`); `acl_store.py` has the bindings there are. A denial goes before every
permission. Reading, writing, deleting or altering a thing includes describing it, altering its settings includes
describing those. What no binding permits is denied.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from flowshare.protocol.rights import Operation, ResourceType

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of who did not log in where nobody has to."""
EVERYBODY: Final = "User:*"
ANYWHERE: Final = "*"
ANY_NAME: Final = "*"

INCLUDED_IN: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""Operation -> those whose permission includes it."""

PERMITTING: Final[Mapping[Operation, frozenset[Operation]]] = {
    operation: frozenset({operation, Operation.ALL}) | INCLUDED_IN.get(operation, frozenset())
    for operation in Operation
}
"""Operation -> operations of bindings that permit it."""


class Pattern(enum.IntEnum):
    """How a binding's name, or a filter's, is meant (Kafka's PatternType codes)."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One binding. `name`: of one thing, `*` for all, or with `prefixed` what names begin with."""

    principal: str
    operation: Operation
    resource: ResourceType
    name: str
    prefixed: bool = False
    host: str = ANYWHERE
    allow: bool = True

    @property
    def pattern(self) -> Pattern:
        """LITERAL or PREFIXED."""
        return Pattern.PREFIXED if self.prefixed else Pattern.LITERAL


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Which bindings are meant; None means any. `pattern` MATCH: all that bear on the thing called `name`."""

    principal: str | None = None
    operation: Operation | None = None
    resource: ResourceType | None = None
    name: str | None = None
    pattern: Pattern = Pattern.ANY
    host: str | None = None
    allow: bool | None = None

    def matches(self, acl: Acl) -> bool:
        """Whether the binding is meant."""
        return (
            self.principal in (None, acl.principal)
            and self.operation in (None, acl.operation)
            and self.resource in (None, acl.resource)
            and self.host in (None, acl.host)
            and self.allow in (None, acl.allow)
            and self._matches_name(acl)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern is not Pattern.MATCH:
            return self.name == acl.name
        return self.name.startswith(acl.name) if acl.prefixed else acl.name in (self.name, ANY_NAME)


class _Patterns:
    """Bindings on one kind of things. A look-up costs one dictionary access for each length that prefixes have."""

    def __init__(self) -> None:
        self.literal: dict[str, dict[str, frozenset[Acl]]] = {}
        self.prefixed: dict[str, dict[str, frozenset[Acl]]] = {}
        self.permissions: dict[str, set[Acl]] = {}
        """Principal -> its bindings that allow something."""
        self._lengths: dict[int, int] = {}
        """Length -> how many different prefixes have it."""

    def change(self, acl: Acl, *, add: bool) -> None:
        """Take in or drop a binding."""
        if acl.allow:
            self._permit(acl, add=add)
        table = self.prefixed if acl.prefixed else self.literal
        people = table.setdefault(acl.name, {})
        if acl.prefixed and not people:
            self._lengths[len(acl.name)] = self._lengths.get(len(acl.name), 0) + 1
        held = people.get(acl.principal, frozenset())
        changed = held | {acl} if add else held - {acl}
        if changed:
            people[acl.principal] = changed
            return
        people.pop(acl.principal, None)
        if not people:
            del table[acl.name]
            if acl.prefixed:
                self._forget_length(len(acl.name))

    def on(self, name: str) -> Iterator[Mapping[str, frozenset[Acl]]]:
        """By principal, the bindings that bear on the thing of this name, one mapping a pattern."""
        for literal in {name, ANY_NAME}:
            if (people := self.literal.get(literal)) is not None:
                yield people
        for length in self._lengths:
            if length <= len(name) and (people := self.prefixed.get(name[:length])) is not None:
                yield people

    def named(self, name: str, pattern: Pattern) -> Iterator[Mapping[str, frozenset[Acl]]]:
        """By principal, the bindings that a filter with this name can mean, one mapping a pattern."""
        if pattern is Pattern.MATCH:
            yield from self.on(name)
            return
        if pattern is not Pattern.PREFIXED and (people := self.literal.get(name)) is not None:
            yield people
        if pattern is not Pattern.LITERAL and (people := self.prefixed.get(name)) is not None:
            yield people

    def _permit(self, acl: Acl, *, add: bool) -> None:
        held = self.permissions.setdefault(acl.principal, set())
        if add:
            held.add(acl)
        else:
            held.discard(acl)
        if not held:
            del self.permissions[acl.principal]

    def _forget_length(self, length: int) -> None:
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]


class Authorizer:
    """Decides what a principal may do. This one allows everything to everybody: a listener without security."""

    def allowed(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether `principal` (`User:alice`), coming from the address `host`, may do `operation`."""
        del principal, host, operation, resource, name
        return True

    def allowed_somewhere(self, principal: str, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Whether there can be a thing of this kind on which it is allowed."""
        del principal, host, operation, resource
        return True


class Acls(Authorizer):
    """A set of bindings that answers quickly who may do what."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._all: set[Acl] = set()
        self._patterns = {resource: _Patterns() for resource in ResourceType}
        for acl in acls:
            self.add(acl)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._all

    def add(self, acl: Acl) -> None:
        """Take in a binding; harmless when it is there."""
        if acl not in self._all:
            self._all.add(acl)
            self._patterns[acl.resource].change(acl, add=True)

    def remove(self, acl: Acl) -> None:
        """Drop a binding; harmless when it is not there."""
        if acl in self._all:
            self._all.remove(acl)
            self._patterns[acl.resource].change(acl, add=False)

    def matching(self, wanted: AclFilter) -> list[Acl]:
        """All bindings that a filter means, in a fixed order."""
        return sorted((acl for acl in self.candidates(wanted) if wanted.matches(acl)), key=_order)

    def candidates(self, wanted: AclFilter) -> Collection[Acl]:
        """The bindings that have to be looked at to find those that a filter means; few if it has a name."""
        if wanted.name is None:
            return self._all
        kinds = ResourceType if wanted.resource is None else (wanted.resource,)
        found: list[Acl] = []
        for kind in kinds:
            for people in self._patterns[kind].named(wanted.name, wanted.pattern):
                for acls in people.values():
                    found += acls
        return found

    def allowed(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether the bindings permit it."""
        permitted = False
        for people in self._patterns[resource].on(name):
            for acl in _about(people, principal, host):
                if not acl.allow:
                    if acl.operation in (operation, Operation.ALL):
                        return False
                elif acl.operation in PERMITTING[operation]:
                    permitted = True
        return permitted

    def allowed_somewhere(self, principal: str, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Whether there can be a thing of this kind on which the bindings permit it."""
        patterns = self._patterns[resource]
        if self._denied(patterns.literal.get(ANY_NAME, {}), principal, host, operation):
            return False
        return any(
            not self._denied_at(patterns, acl, principal, host, operation)
            for acl in _about(patterns.permissions, principal, host)
            if acl.operation in PERMITTING[operation]
        )

    def _denied_at(self, patterns: _Patterns, acl: Acl, principal: str, host: str, operation: Operation) -> bool:
        """Whether all things that `acl` means are denied by another binding."""
        if acl.name == ANY_NAME and not acl.prefixed:
            return False
        prefixes = [acl.name[:length] for length in range(1, len(acl.name) + 1)]
        tables = [patterns.prefixed.get(prefix, {}) for prefix in prefixes]
        if not acl.prefixed:
            tables.append(patterns.literal.get(acl.name, {}))
        return any(self._denied(people, principal, host, operation) for people in tables)

    @staticmethod
    def _denied(people: Mapping[str, frozenset[Acl]], principal: str, host: str, operation: Operation) -> bool:
        return any(
            not acl.allow and acl.operation in (operation, Operation.ALL) for acl in _about(people, principal, host)
        )


def _about(people: Mapping[str, Iterable[Acl]], principal: str, host: str) -> Iterator[Acl]:
    """Bindings for this principal at this host."""
    for who in (principal, EVERYBODY):
        for acl in people.get(who, ()):
            if acl.host in (ANYWHERE, host):
                yield acl


def _order(acl: Acl) -> tuple[object, ...]:
    return (acl.resource, acl.name, acl.prefixed, acl.principal, acl.host, acl.operation, acl.allow)
