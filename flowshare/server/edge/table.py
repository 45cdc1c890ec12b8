"""All APIs that are served at a socket."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING

from flowshare.server.edge.acls import AclApis
from flowshare.server.edge.api_versions import ApiVersionsApi
from flowshare.server.edge.base import Api, Family
from flowshare.server.edge.classic import ClassicGroupEdge
from flowshare.server.edge.configs import ConfigsEdge
from flowshare.server.edge.groups import GroupsEdge
from flowshare.server.edge.metadata import MetadataEdge
from flowshare.server.edge.offsets import OffsetEdge
from flowshare.server.edge.positions import PositionsEdge
from flowshare.server.edge.private import PrivateApis
from flowshare.server.edge.records import RecordsEdge
from flowshare.server.edge.sasl import SaslApis
from flowshare.server.edge.scram import ScramApis
from flowshare.server.edge.share import ShareApis
from flowshare.server.edge.share_admin import ShareAdminApis
from flowshare.server.edge.share_state import ShareStateEdge
from flowshare.server.edge.topics import TopicsEdge
from flowshare.server.edge.transactions import TransactionsEdge
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
    acls = AclApis(authorizer if isinstance(authorizer, AclStore) else None)
    logins: tuple[Family, ...] = () if sasl is None else (SaslApis(sasl, clock),)
    if sasl is not None and sasl.managed:
        logins += (ScramApis(sasl.users),)
    return (
        acls,
        *logins,
        ClassicGroupEdge(),
        OffsetEdge(),
        ShareApis(),
        ShareAdminApis(server.topics),
        ShareStateEdge(),
        GroupsEdge(),
        ConfigsEdge(),
        MetadataEdge(server.config),
        TopicsEdge(topics=server.topics, config=server.config, clock=clock),
        RecordsEdge(server.topics),
        PositionsEdge(),
        TransactionsEdge(server.topics),
        PrivateApis(),
    )


def table(families: Iterable[Family], *, only: Container[int] | None = None) -> Mapping[int, Api]:
    """API key -> API; ApiVersions comes along and advertises the rest. Raises: ValueError for a key given twice.

    only: keys to leave out all others.
    """
    found: dict[int, Api] = {}
    for api in (api for family in families for api in family.apis()):
        if only is not None and api.key not in only:
            continue
        if api.key in found:
            raise ValueError(f"two families serve {api.key.name}")
        found[api.key] = api
    for api in ApiVersionsApi(found.values()).apis():
        found[api.key] = api
    return dict(sorted(found.items()))
