"""The web server of an app's own pages (`@app.page`): one port per process.

Faust's server has one fixed port, which the second process on a machine finds taken, and tells others the machine's
name while it listens on loopback only. The host and the origin of a request decide if it may ask, as for flowshare's
pages (`agents/pages/gate.py`); further checks are the application's own. Faust's own pages (`/table/`, `/router/`, …),
which tell names and values, are for the operator.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from aiohttp import web as http
from yarl import URL

from flowshare.agents.handler.errors import UsageError
from flowshare.agents.pages.gate import BadPages, Gate, Need, read_host, read_hosts, read_token
from flowshare.agents.pages.site import (
    BOUNDS_OF_APPS,
    OF_APPS,
    ConnectionLimiter,
    Handler,
    Listening,
    bound,
    guarded,
)
from flowshare.clock import LoopClock
from flowshare.server.security.guesses import is_loopback

if TYPE_CHECKING:
    from flowshare.agents.faust.app import FaustApp

logger = logging.getLogger("flowshare.worker")


def listen_for_pages(app: FaustApp) -> str:
    """Take a port for the app's pages before their address is told, and have Faust's web server serve there; return the
    URL.

    The port is the option `web_port`, else a free one. The address is `web_bind`, 127.0.0.1 by default.
    Raises: UsageError when the address cannot be had.
    """
    conf: Any = app.conf
    _, options = app._default_options  # noqa: SLF001 - Faust's name; the settings do not tell a default from a choice
    bind = str(conf.web_bind)
    scheme = "http" if conf.web_ssl_context is None else "https"
    gate = _gate(app, scheme)
    sock = _bound(bind, options.get("web_port") or 0)
    port = sock.getsockname()[1]
    host = bind if is_loopback(bind) else conf.web_host
    url = URL.build(scheme=scheme, host=str(host), port=port)
    object.__setattr__(conf, "web_port", port)  # the settings' own __setattr__ warns of values already read
    if "canonical_url" not in options:
        object.__setattr__(conf, "canonical_url", url)
    web: Any = app.web
    limiter = ConnectionLimiter(BOUNDS_OF_APPS, LoopClock())

    def site() -> Listening:
        return Listening(web._runner, limiter, sock, conf.web_ssl_context)  # noqa: SLF001 - Faust's name

    web._transport_handlers["tcp"] = site  # noqa: SLF001
    _guard_of(web).gate = gate
    logger.info("the app's pages are at %s", url)
    return str(url)


def _gate(app: FaustApp, scheme: str) -> Gate:
    """Make the gate. Raises: UsageError."""
    conf: Any = app.conf
    told = str(conf.web_host)
    try:
        return Gate(
            read_hosts((*app.web_hosts, told) if read_host(told) else app.web_hosts, os.environ),
            bind=str(conf.web_bind),
            machine=socket.gethostname(),
            token=read_token(environment=os.environ),
            scheme=scheme,
            origins=conf.web_cors_options or (),
            strict=False,
        )
    except BadPages as error:
        raise UsageError(f"App({app.app_id!r}): {error}") from None


class _Guard:
    """The middleware before all pages of one of Faust's web servers."""

    __middleware_version__ = 1  # aiohttp's mark of a middleware

    def __init__(self, faust: Any) -> None:
        self._faust = faust
        self.gate = Gate(bind="", machine="")

    async def __call__(self, request: http.Request, handler: Handler) -> http.StreamResponse:
        resource = request.match_info.route.resource
        view = None if resource is None else self._faust.views.get(resource.canonical)
        need = Need.OPERATOR if _tells_names(view) else Need.HOST
        return await guarded(self.gate, request, need, handler, _dressed)


def _guard_of(web: Any) -> _Guard:
    """Return the guard of the app's web server; it stays when the app is stopped and started again."""
    there: Any = web.web_app.middlewares
    for one in there:
        if isinstance(one, _Guard):
            return one
    guard = _Guard(web)
    there.insert(0, guard)
    return guard


def _tells_names(view: Any) -> bool:
    """Tell if the view is one of Faust's own pages, which tell names; its production index only says `OK`."""
    module = type(view).__module__
    return module.startswith("faust.web.apps.") and not module.endswith(".production_index")


def _dressed(answer: http.StreamResponse) -> http.StreamResponse:
    for name, text in OF_APPS.items():
        answer.headers.setdefault(name, text)
    return answer


def _bound(bind: str, port: int) -> socket.socket:
    try:
        return bound(bind, port)
    except (OSError, UnicodeError) as error:
        from flowshare.server.net.listener import not_bound

        why = not_bound(
            error,
            host="web_bind is to be an address of this machine, 0.0.0.0 for all",
            port="leave web_port out for a free port, which is printed, or give each process its own",
        )
        raise UsageError(f"the app's pages cannot be served on {bind}:{port}: {why}") from error
