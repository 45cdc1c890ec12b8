"""The table of all APIs that are served at a socket."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING

from flowshare.server.edge import (
    api_versions,
    configs,
    cooperative,
    groups,
    metadata,
    private,
    records,
    share,
    topics,
    transactions,
)
from flowshare.server.edge.acls import AclApis
from flowshare.server.edge.base import Endpoint
from flowshare.server.edge.derived import handed_on
from flowshare.server.edge.sasl import SaslApis, ScramApis
from flowshare.server.security.acl_store import AclStore

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.server.security.acls import Authorizer
    from flowshare.server.security.sasl import Sasl


def endpoints(*, clock: Clock, sasl: Sasl | None = None, authorizer: Authorizer | None = None) -> tuple[Endpoint, ...]:
    """Return the APIs of a server, ApiVersions excepted.

    sasl: the logins, None: no login is needed. authorizer: the rights, None: everybody may do everything.
    """
    return (
        *AclApis(authorizer if isinstance(authorizer, AclStore) else None).apis(),
        *(() if sasl is None else SaslApis(sasl, clock).apis()),
        *(() if sasl is None or not sasl.managed else ScramApis(sasl.users).apis()),
        *groups.ENDPOINTS,
        *share.ENDPOINTS,
        *cooperative.ENDPOINTS,
        *configs.ENDPOINTS,
        *metadata.ENDPOINTS,
        *topics.ENDPOINTS,
        *records.ENDPOINTS,
        *transactions.ENDPOINTS,
        private.endpoint(private.ON_TOPICS),
        *handed_on(),
    )


def table(endpoints: Iterable[Endpoint], *, only: Container[int] | None = None) -> Mapping[int, Endpoint]:
    """Return API key -> API; ApiVersions is added and advertises the rest. Raises: ValueError for a key given twice.

    only: keys to leave out all others.
    """
    found: dict[int, Endpoint] = {}
    for one in endpoints:
        if only is not None and one.key not in only:
            continue
        if one.key in found:
            raise ValueError(f"two endpoints serve {one.key.name}")
        found[one.key] = one
    own = api_versions.endpoint(found.values())
    return dict(sorted({**found, own.key: own}.items()))
