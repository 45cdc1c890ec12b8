"""All APIs that are served at a socket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from flowshare.server.edge.acls import AclApis
from flowshare.server.edge.api_versions import ApiVersionsApi
from flowshare.server.edge.base import Api, Family
from flowshare.server.edge.classic import ClassicGroupEdge
from flowshare.server.edge.offsets import OffsetEdge
from flowshare.server.edge.sasl import SaslApis
from flowshare.server.edge.scram import ScramApis
from flowshare.server.security.authorizer import AclStore

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.server.edge.base import Authorizer
    from flowshare.server.security.sasl import Sasl
    from flowshare.server.server import Server


def families(
    server: Server, *, clock: Clock, sasl: Sasl | None = None, authorizer: Authorizer | None = None
) -> tuple[Family, ...]:
    """The families of APIs of a server, ApiVersions excepted.

    sasl: who may log in, None: nobody has to. authorizer: who may do what, None: everybody everything.
    """
    del server
    acls = AclApis(authorizer if isinstance(authorizer, AclStore) else None)
    logins = (SaslApis(sasl, clock), ScramApis(sasl.users)) if sasl is not None else ()
    return (acls, *logins, ClassicGroupEdge(), OffsetEdge())


def table(families: Iterable[Family]) -> Mapping[int, Api]:
    """API key -> API; ApiVersions comes along and advertises the rest. Raises: ValueError for a key given twice."""
    found: dict[int, Api] = {}
    for api in (api for family in families for api in family.apis()):
        if api.key in found:
            raise ValueError(f"two families serve {api.key.name}")
        found[api.key] = api
    for api in ApiVersionsApi(found.values()).apis():
        found[api.key] = api
    return dict(sorted(found.items()))
