"""Rights: bindings of principals to operations on things, and the rules by which Kafka's authorizer reads them.

The words are Kafka's (`protocol.rights`); `acl_store.py` has the present bindings. A denial goes before every
permission. Permission to read, write, delete or alter a thing includes describing it, altering its settings includes
describing those. An operation that no binding permits is denied.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from flowshare.protocol.rights import Operation, ResourceType

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client without login, where no login is needed."""
EVERYBODY: Final = "User:*"
ANYWHERE: Final = "*"
ANY_NAME: Final = "*"

INCLUDED_IN: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""Operation -> the operations whose permission includes it."""

PERMITTING: Final[Mapping[Operation, frozenset[Operation]]] = {
    operation: frozenset({operation, Operation.ALL}) | INCLUDED_IN.get(operation, frozenset())
    for operation in Operation
}
"""Operation -> operations of bindings that permit it."""


class Pattern(enum.IntEnum):
    """Meaning of a binding's or a filter's name (Kafka's PatternType codes)."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """A binding. `name`: of one thing, `*` for all, or with `prefixed` the beginning of names."""

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
    """A choice of bindings; None means any. `pattern` MATCH: all bindings that bear on the thing called `name`."""

    principal: str | None = None
    operation: Operation | None = None
    resource: ResourceType | None = None
    name: str | None = None
    pattern: Pattern = Pattern.ANY
    host: str | None = None
    allow: bool | None = None

    def matches(self, acl: Acl) -> bool:
        """Return True if the filter matches the binding."""
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
    """Bindings on one kind of things. A look-up costs one dictionary access per length of prefixes."""

    def __init__(self) -> None:
        self.literal: dict[str, dict[str, frozenset[Acl]]] = {}
        self.prefixed: dict[str, dict[str, frozenset[Acl]]] = {}
        self.permissions: dict[str, set[Acl]] = {}
        """Principal -> its bindings that allow something."""
        self._lengths: dict[int, int] = {}
        """Length -> number of different prefixes of that length."""

    def change(self, acl: Acl, *, add: bool) -> None:
        """Add or drop a binding."""
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
        """Yield the bindings that bear on the thing of this name, by principal, one mapping a pattern."""
        for literal in {name, ANY_NAME}:
            if (people := self.literal.get(literal)) is not None:
                yield people
        for length in self._lengths:
            if length <= len(name) and (people := self.prefixed.get(name[:length])) is not None:
                yield people

    def named(self, name: str, pattern: Pattern) -> Iterator[Mapping[str, frozenset[Acl]]]:
        """Yield the bindings that a filter with this name can mean, by principal, one mapping a pattern."""
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
    """Decides the rights of a principal. This class allows everything to everybody: a listener without security."""

    def allowed(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Return True if `principal` (`User:alice`), coming from the address `host`, may do `operation`."""
        del principal, host, operation, resource, name
        return True

    def allowed_somewhere(self, principal: str, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Return True if there can be a resource of this kind on which `operation` is allowed."""
        del principal, host, operation, resource
        return True


class Acls(Authorizer):
    """A set of bindings with a fast check of rights."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._all: set[Acl] = set()
        self._patterns = {resource: _Patterns() for resource in ResourceType}
        for acl in acls:
            self.add(acl)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._all

    def add(self, acl: Acl) -> None:
        """Add a binding; harmless when present."""
        if acl not in self._all:
            self._all.add(acl)
            self._patterns[acl.resource].change(acl, add=True)

    def remove(self, acl: Acl) -> None:
        """Drop a binding; harmless when absent."""
        if acl in self._all:
            self._all.remove(acl)
            self._patterns[acl.resource].change(acl, add=False)

    def matching(self, wanted: AclFilter) -> list[Acl]:
        """Return all bindings that a filter means, in a fixed order."""
        return sorted((acl for acl in self.candidates(wanted) if wanted.matches(acl)), key=_order)

    def candidates(self, wanted: AclFilter) -> Collection[Acl]:
        """Return a superset of the bindings that a filter means, to be checked one by one; few if the filter has a
        name."""
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
        """Return True if the bindings permit `operation`."""
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
        """Return True if there can be a resource of this kind on which the bindings permit `operation`."""
        patterns = self._patterns[resource]
        if self._denied(patterns.literal.get(ANY_NAME, {}), principal, host, operation):
            return False
        return any(
            not self._denied_at(patterns, acl, principal, host, operation)
            for acl in _about(patterns.permissions, principal, host)
            if acl.operation in PERMITTING[operation]
        )

    def _denied_at(self, patterns: _Patterns, acl: Acl, principal: str, host: str, operation: Operation) -> bool:
        """Return True if another binding denies all the resources that `acl` names."""
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
    """Yield the bindings for this principal at this host."""
    for who in (principal, EVERYBODY):
        for acl in people.get(who, ()):
            if acl.host in (ANYWHERE, host):
                yield acl


def _order(acl: Acl) -> tuple[object, ...]:
    return (acl.resource, acl.name, acl.prefixed, acl.principal, acl.host, acl.operation, acl.allow)
