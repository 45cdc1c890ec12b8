"""The file of ACLs: one line a binding.

    # allow|deny  principal   operation   kind of thing   name   [prefixed]  [from host]
    allow User:alice read topic orders
    allow User:alice read group billing- prefixed
    allow "User:CN=etl,O=My Shop" write topic *
    deny  User:* all topic audit from 10.0.0.7
    allow User:root alter cluster

Operations and kinds are Kafka's names in lower or upper case; a cluster has no name. Words with spaces stand in double
quotes. Empty lines, and lines that begin with `#`, are skipped.
"""

from __future__ import annotations

import ipaddress
import shlex
from pathlib import Path
from typing import Final

from flowshare.core_errors import FlowshareError
from flowshare.protocol.rights import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from flowshare.server.security.acls import ANYWHERE, Acl

ACLS_MAX: Final = 100_000
"""Most bindings of a file."""
FORM: Final = "write: allow|deny principal operation topic|group|transactional_id name [prefixed] [from host]"


class BadAclFile(FlowshareError, ValueError):
    """A file of ACLs that cannot be used; the text names file and line."""


def read_acls(path: Path) -> tuple[Acl, ...]:
    """Read a file of ACLs. Raises: BadAclFile."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise BadAclFile(f"the file of ACLs {path} cannot be read: {reason}") from None
    return parse_acls(text, where=str(path))


def parse_acls(text: str, *, where: str) -> tuple[Acl, ...]:
    """Read the text of a file of ACLs; `where` stands in the errors. Raises: BadAclFile."""
    acls: dict[Acl, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            acl = _binding(line)
            if acl in acls:
                raise BadAclFile(f"the same as line {acls[acl]}; remove one of the two")
        except BadAclFile as error:
            raise BadAclFile(f"{where} line {number}: {error}") from None
        acls[acl] = number
        if len(acls) > ACLS_MAX:
            raise BadAclFile(f"{where} line {number}: more than {ACLS_MAX} bindings")
    return tuple(acls)


def check_principal(principal: str) -> None:
    """Check that this has the form of a principal. Raises: BadAclFile."""
    if not principal.startswith("User:") or not principal.removeprefix("User:"):
        raise BadAclFile(f"the principal {principal!r} is no User:name; User:* is everybody")


def _binding(line: str) -> Acl:
    try:
        words = shlex.split(line)
    except ValueError:
        raise BadAclFile("a double quote has no end") from None
    if len(words) < 4:
        raise BadAclFile(f"{len(words)} words are too few; {FORM}")
    permission, principal, operation_word, resource_word, *rest = words
    if permission.lower() not in ("allow", "deny"):
        raise BadAclFile(f"begins with {permission!r}; {FORM}")
    check_principal(principal)
    resource = _resource(resource_word)
    host = _host(rest)
    prefixed = bool(rest) and resource is not ResourceType.CLUSTER and len(rest) > 1 and rest[-1].lower() == "prefixed"
    if prefixed:
        rest.pop()
    return Acl(
        principal=principal,
        operation=_operation(operation_word, resource),
        resource=resource,
        name=_name(rest, resource),
        prefixed=prefixed,
        host=host,
        allow=permission.lower() == "allow",
    )


def _resource(word: str) -> ResourceType:
    try:
        return ResourceType[word.upper()]
    except KeyError:
        known = ", ".join(kind.name.lower() for kind in ResourceType)
        raise BadAclFile(f"{word!r} is no kind of thing; known: {known}") from None


def _operation(word: str, resource: ResourceType) -> Operation:
    known = (Operation.ALL, *sorted(OPERATIONS[resource]))
    found = next((operation for operation in known if operation.name == word.upper()), None)
    if found is None:
        names = ", ".join(operation.name.lower() for operation in known)
        raise BadAclFile(f"{word!r} cannot be done to a {resource.name.lower()}; known: {names}")
    return found


def _host(rest: list[str]) -> str:
    """Take `from host` off the end of a line; return the host. Raises: BadAclFile."""
    if len(rest) < 2 or rest[-2].lower() != "from":
        return ANYWHERE
    host = rest.pop()
    rest.pop()
    if host != ANYWHERE:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise BadAclFile(f"the host {host!r} is no address; write one like 10.0.0.7, or * for any") from None
    return host


def _name(rest: list[str], resource: ResourceType) -> str:
    if resource is ResourceType.CLUSTER:
        if rest not in ([], [CLUSTER_NAME]):
            raise BadAclFile(f"a cluster has no name, and there is {' '.join(rest)!r}; leave it out")
        return CLUSTER_NAME
    if len(rest) != 1 or not rest[0]:
        raise BadAclFile(f"behind {resource.name.lower()} stands one name, and there is {' '.join(rest)!r}; {FORM}")
    return rest[0]
