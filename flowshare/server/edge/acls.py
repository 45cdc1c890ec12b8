"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290), for principals that may describe or alter the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.log.base import LogError
from flowshare.protocol.declaration import Api
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.rights import CLUSTER_NAME, Operation, ResourceType
from flowshare.protocol.translation import NO_TIME, kafka_error
from flowshare.server.edge.base import Endpoint, SocketCall
from flowshare.server.edge.entities import form
from flowshare.server.runtime.failures import Refused, failure
from flowshare.server.security.acl_store import AclStore, TooManyAcls
from flowshare.server.security.acls import Acl, AclFilter, Pattern

if TYPE_CHECKING:
    from flowshare.server.runtime.turns import Turns

K = TypeVar("K", ResourceType, Operation)
VERSIONS: Final = (1, 3)

ANY: Final = 1
"""Kafka's code of "any" for kinds, operations and permissions."""
DENY: Final = 2
ALLOW: Final = 3
TEXT_MAX: Final = 1_024
"""Longest name, principal or host of a binding, in characters."""
CREATED_MAX: Final = 10_000
"""Most bindings or filters in one request."""
DELETED_MAX: Final = 10_000
"""Most bindings that the filters of one request may mean, together; Kafka's limit."""
LOOKED_AT_MAX: Final = 10_000_000
"""Most bindings that the filters of one request look at: a filter without a name looks at all of them."""


class AclApis:
    """The three APIs; `store` None: the listener has no authorizer."""

    def __init__(self, store: AclStore | None) -> None:
        self._store = store

    def apis(self) -> Sequence[Endpoint]:
        """Return DescribeAcls, CreateAcls and DeleteAcls, v1-3 each."""
        served = {
            ApiKey.DESCRIBE_ACLS: self._describe,
            ApiKey.CREATE_ACLS: self._create,
            ApiKey.DELETE_ACLS: self._delete,
        }
        return tuple(Endpoint(Api(key, server=VERSIONS), answer) for key, answer in served.items())

    async def _describe(self, call: SocketCall) -> Any:
        make = form("describe_acls", call.version)
        told = partial(make, "DescribeAclsResponse")
        resources: list[Any] = []
        try:
            acls = self._checked(call, Operation.DESCRIBE).matching(_filter(call.request))
            for (resource, name, pattern), together in groupby(
                acls, key=lambda acl: (acl.resource, acl.name, acl.pattern)
            ):
                bindings = await call.peer.turns.each(lambda acl: make("AclDescription", **_rights(acl)), together)
                of = {"resource_type": int(resource), "resource_name": name, "pattern_type": int(pattern)}
                resources.append(make("DescribeAclsResource", **of, acls=bindings))
        except Refused as error:  # AnswerTooLarge is one of them
            return told(error_code=error.code, error_message=str(error), resources=())
        return told(error_code=ErrorCode.NONE, error_message=None, resources=tuple(resources))

    async def _create(self, call: SocketCall) -> Any:
        made: Any = module("create_acls", call.version, "response")
        outcomes: list[tuple[ErrorCode, str | None]] = [(ErrorCode.NONE, None)] * len(call.request.creations)
        good: dict[int, Acl] = {}
        try:
            store = self._checked(call, Operation.ALTER)
            _check_count(call.request.creations)
            for position, creation in enumerate(call.request.creations):
                try:
                    good[position] = _binding(creation)
                except Refused as error:
                    outcomes[position] = failure(error)
            await store.create(tuple(good.values()))
        except (TooManyAcls, LogError) as error:
            full = isinstance(error, TooManyAcls)
            outcome = (ErrorCode.POLICY_VIOLATION, str(error)) if full else failure(error)
            outcomes = [outcome if position in good else one for position, one in enumerate(outcomes)]
        except Refused as error:
            outcomes = [failure(error)] * len(outcomes)
        return made.CreateAclsResponse(
            throttle_time=NO_TIME,
            results=tuple(
                made.AclCreationResult(error_code=kafka_error(code), error_message=text) for code, text in outcomes
            ),
        )

    async def _delete(self, call: SocketCall) -> Any:
        made: Any = module("delete_acls", call.version, "response")
        filters = call.request.filters
        try:
            store = self._checked(call, Operation.ALTER)
            _check_count(filters)
            results = await _deleted(made, store, filters, call.peer.turns)
        except (Refused, LogError) as error:
            results = [_filter_result(made, failure(error), ()) for _ in filters]
        return made.DeleteAclsResponse(throttle_time=NO_TIME, filter_results=tuple(results))

    def _checked(self, call: SocketCall, operation: Operation) -> AclStore:
        """Return the bindings, if the caller may have them. Raises: Refused."""
        if self._store is None:
            raise Refused(ErrorCode.SECURITY_DISABLED, "this listener has no ACLs; start it with a file of ACLs")
        call.peer.need(operation, ResourceType.CLUSTER)
        return self._store


async def _deleted(made: Any, store: AclStore, filters: Sequence[Any], turns: Turns) -> list[Any]:
    """Delete the bindings that any of the filters means, together; return all results. Raises: LogError, Refused."""
    meant = await _meant(store, filters, turns)
    await store.delete({acl for acls in meant if isinstance(acls, list) for acl in acls})
    return [
        _filter_result(made, failure(acls), ())
        if isinstance(acls, Refused)
        else _filter_result(made, (ErrorCode.NONE, None), (_matched(made, store, acl) for acl in acls))
        for acls in meant
    ]


async def _meant(store: AclStore, filters: Sequence[Any], turns: Turns) -> list[list[Acl] | Refused]:
    """Return each filter's ACLs, or the filter's error. Raises: Refused (too many ACLs together)."""
    meant: list[list[Acl] | Refused] = []
    found = looked_at = 0
    for one in filters:
        try:
            wanted = _filter(one)
        except Refused as error:
            meant.append(error)
            continue
        candidates = len(store.candidates(wanted))
        looked_at += candidates
        if looked_at > LOOKED_AT_MAX:
            raise _invalid("so many filters without a name take too long with so many ACLs; send fewer at a time")
        await turns.take(1 + candidates)
        acls = store.matching(wanted)
        meant.append(acls)
        found += len(acls)
        if found > DELETED_MAX:
            raise _invalid(f"a request removes at most {DELETED_MAX} ACLs; name fewer")
    return meant


def _matched(made: Any, store: AclStore, acl: Acl) -> Any:
    kept = store.from_file(acl)
    return made.DeleteAclsMatchingAcl(
        error_code=kafka_error(ErrorCode.POLICY_VIOLATION if kept else ErrorCode.NONE),
        error_message="it stands in the server's file of ACLs; change that" if kept else None,
        resource_type=int(acl.resource),
        resource_name=acl.name,
        pattern_type=int(acl.pattern),
        **_rights(acl),
    )


def _filter_result(made: Any, outcome: tuple[ErrorCode, str | None], matching: Iterable[Any]) -> Any:
    code, text = outcome
    return made.DeleteAclsFilterResult(error_code=kafka_error(code), error_message=text, matching_acls=tuple(matching))


def _rights(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": ALLOW if acl.allow else DENY,
    }


def _binding(creation: Any) -> Acl:
    """Read the ACL that is to be created. Raises: Refused."""
    resource = _kind(ResourceType, creation.resource_type, "resource type")
    operation = _kind(Operation, creation.operation, "operation")
    allow = _permission(creation.permission_type)
    if resource is None or operation is None or allow is None:
        raise _invalid("an ACL names one kind of thing, one operation and one permission, not 'any'")
    if creation.resource_pattern_type not in (Pattern.LITERAL, Pattern.PREFIXED):
        raise _invalid("an ACL's pattern is LITERAL or PREFIXED")
    if not creation.resource_name:
        raise _invalid("an ACL names a thing; * is all of them")
    if resource is ResourceType.CLUSTER and creation.resource_name != CLUSTER_NAME:
        raise _invalid(f"the only name of a cluster is {CLUSTER_NAME}")
    kind, separator, name = creation.principal.partition(":")
    if not (kind and separator and name):
        raise _invalid("a principal is written as User:name; User:* is everybody")
    if not creation.host:
        raise _invalid("an ACL has a host; * is any")
    if max(len(text) for text in (creation.resource_name, creation.principal, creation.host)) > TEXT_MAX:
        raise _invalid(f"an ACL's name, principal and host have at most {TEXT_MAX} characters")
    return Acl(
        principal=creation.principal,
        operation=operation,
        resource=resource,
        name=creation.resource_name,
        prefixed=creation.resource_pattern_type == Pattern.PREFIXED,
        host=creation.host,
        allow=allow,
    )


def _filter(wanted: Any) -> AclFilter:
    """Read the filter of DescribeAcls or DeleteAcls. Raises: Refused."""
    try:
        pattern = Pattern(wanted.pattern_type_filter)
    except ValueError:
        raise _invalid(f"there is no pattern type {wanted.pattern_type_filter}") from None
    return AclFilter(
        principal=wanted.principal_filter,
        operation=_kind(Operation, wanted.operation, "operation"),
        resource=_kind(ResourceType, wanted.resource_type_filter, "resource type"),
        name=wanted.resource_name_filter,
        pattern=pattern,
        host=wanted.host_filter,
        allow=_permission(wanted.permission_type),
    )


def _kind(kinds: type[K], code: int, what: str) -> K | None:
    """Return the kind of a number, None for any. Raises: Refused."""
    if code == ANY:
        return None
    try:
        return kinds(code)
    except ValueError:
        raise _invalid(f"ACLs for {what} {code} are not kept here") from None


def _permission(code: int) -> bool | None:
    if code not in (ANY, DENY, ALLOW):
        raise _invalid(f"there is no permission type {code}")
    return None if code == ANY else code == ALLOW


def _check_count(parts: Sequence[Any]) -> None:
    if len(parts) > CREATED_MAX:
        raise _invalid(f"a request has at most {CREATED_MAX} parts; send several")


def _invalid(text: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, text)
