"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554): users made over the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from flowshare.log.base import LogError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.scram import ScramError
from flowshare.server.edge.base import CLUSTER_NAME, Api, Call, Operation, ResourceType
from flowshare.server.failures import Refused, failure
from flowshare.server.security.credentials import Credential, from_salted
from flowshare.server.security.users import STORED_MAX, Users
from flowshare.server.security.users_file import BadUsersFile, check_name

MECHANISMS: Final[Mapping[int, str]] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""Kafka's codes (ScramMechanism)."""
CODES: Final[Mapping[str, int]] = {name: code for code, name in MECHANISMS.items()}
CHANGES_MAX: Final = 1_000
"""Most changes in one request."""
SALTED_BYTES: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}

Outcome = tuple[ErrorCode, str | None]


class ScramApis:
    """The two APIs of a listener with SASL. The password itself never comes here: clients send it salted and hashed."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def apis(self) -> Sequence[Api]:
        """Both v0."""
        return (
            Api(key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, lowest=0, highest=0, answer=self._describe),
            Api(key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, lowest=0, highest=0, answer=self._alter),
        )

    async def _describe(self, call: Call) -> Any:
        made: Any = module("describe_user_scram_credentials", 0, "response")
        outcome: Outcome = (ErrorCode.NONE, None)
        results: tuple[Any, ...] = ()
        try:
            _check(call, Operation.DESCRIBE)
        except Refused as error:
            outcome = failure(error)
        else:
            known = self._users.all()
            asked = [user.name for user in call.request.users or ()] or sorted(known)
            times = Counter(asked)
            results = tuple(_described(made, name, known.get(name, ()), times[name]) for name in times)
        return made.DescribeUserScramCredentialsResponse(
            throttle_time=timedelta(), error_code=_kafka(outcome[0]), error_message=outcome[1], results=results
        )

    async def _alter(self, call: Call) -> Any:
        made: Any = module("alter_user_scram_credentials", 0, "response")
        request = call.request
        names = dict.fromkeys(change.name for change in (*request.deletions, *request.upsertions))
        try:
            _check(call, Operation.ALTER)
            if len(request.deletions) + len(request.upsertions) > CHANGES_MAX:
                raise Refused(ErrorCode.INVALID_REQUEST, f"a request has at most {CHANGES_MAX} changes; send several")
            outcomes = await self._altered(request, names)
        except (Refused, LogError) as error:
            outcomes = dict.fromkeys(names, failure(error))
        return made.AlterUserScramCredentialsResponse(
            throttle_time=timedelta(),
            results=tuple(
                made.AlterUserScramCredentialsResult(user=name, error_code=_kafka(code), error_message=text)
                for name, (code, text) in outcomes.items()
            ),
        )

    async def _altered(self, request: Any, names: Iterable[str]) -> dict[str, Outcome]:
        """What became of each user's changes; those of one user are made together or not at all. Raises: LogError."""
        outcomes: dict[str, Outcome] = dict.fromkeys(names, (ErrorCode.NONE, None))
        puts: list[tuple[str, Credential]] = []
        removals: list[tuple[str, str]] = []
        added = 0
        for name in outcomes:
            try:
                new = [_credential(put) for put in request.upsertions if put.name == name]
                gone = [_mechanism(removal.mechanism) for removal in request.deletions if removal.name == name]
                added += self._check_changes(name, new, gone, added)
            except Refused as error:
                outcomes[name] = failure(error)
            else:
                puts += [(name, credential) for credential in new]
                removals += [(mechanism, name) for mechanism in gone]
        await self._users.alter(puts, removals)
        return outcomes

    def _check_changes(self, name: str, new: Sequence[Credential], gone: Sequence[str], before: int) -> int:
        """How many credentials there are more by it. before: what the request has added so far. Raises: Refused."""
        try:
            check_name(name)
        except BadUsersFile as error:
            raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from None
        if self._users.fixed(name):
            raise Refused(ErrorCode.POLICY_VIOLATION, f"the user {name} stands in the server's file; change that")
        mechanisms = [*gone, *(credential.mechanism for credential in new)]
        if len(mechanisms) != len(set(mechanisms)):
            raise Refused(ErrorCode.DUPLICATE_RESOURCE, "a user's mechanism is changed twice in one request")
        if not all(self._users.stored(mechanism, name) for mechanism in gone):
            raise Refused(ErrorCode.RESOURCE_NOT_FOUND, "a credential that is to be deleted does not exist")
        added = sum(not self._users.stored(credential.mechanism, name) for credential in new)
        if added and self._users.count + before + added > STORED_MAX:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"there may be {STORED_MAX} credentials; delete some first")
        return added


def _described(made: Any, name: str, credentials: Sequence[Credential], times: int) -> Any:
    code, text = ErrorCode.NONE, None
    if times > 1:
        code, text = ErrorCode.DUPLICATE_RESOURCE, "the user is asked for more than once"
    elif not credentials:
        code, text = ErrorCode.RESOURCE_NOT_FOUND, "there is no such user"
    infos = (
        made.CredentialInfo(mechanism=CODES[credential.mechanism], iterations=credential.iterations)
        for credential in (credentials if code is ErrorCode.NONE else ())
    )
    return made.DescribeUserScramCredentialsResult(
        user=name, error_code=_kafka(code), error_message=text, credential_infos=tuple(infos)
    )


def _credential(put: Any) -> Credential:
    """The credential that a client hashed. Raises: Refused."""
    mechanism = _mechanism(put.mechanism)
    if len(put.salted_password) != SALTED_BYTES[mechanism]:
        raise Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"the salted password of {mechanism} has {SALTED_BYTES[mechanism]} bytes",
        )
    try:
        return from_salted(mechanism, put.salted_password, salt=put.salt, iterations=put.iterations)
    except ScramError as error:
        raise Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from None


def _mechanism(code: int) -> str:
    name = MECHANISMS.get(code)
    if name is None:
        raise Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there is no SCRAM mechanism {code}")
    return name


def _check(call: Call, operation: Operation) -> None:
    """Raises: Refused."""
    if not call.peer.may(operation, ResourceType.CLUSTER, CLUSTER_NAME):
        raise Refused(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"{call.peer.principal} has no right to {operation.name.lower()} the cluster",
        )


def _kafka(code: ErrorCode) -> Any:
    from kio.schema.errors import ErrorCode as KafkaError

    return KafkaError(int(code))
