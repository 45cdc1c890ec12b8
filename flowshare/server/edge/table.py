"""All APIs that are served at a socket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from flowshare.server.edge.api_versions import ApiVersionsApi
from flowshare.server.edge.base import Api, Family

if TYPE_CHECKING:
    from flowshare.server.server import Server


def families(server: Server) -> tuple[Family, ...]:
    """The families of APIs of a server, ApiVersions excepted."""
    del server
    return ()


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
