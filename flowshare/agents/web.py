"""The web server of an app's own pages (`@app.page`): one port a process.

Faust's has one fixed port, which the second process on a machine finds taken, and tells others the machine's name while
it listens on loopback only.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

from aiohttp.web import SockSite
from yarl import URL

from flowshare.agents.errors import UsageError
from flowshare.forks import hold_alone

if TYPE_CHECKING:
    from flowshare.agents.app import App

logger = logging.getLogger("flowshare.worker")


def listen_for_pages(app: App) -> str:
    """Take a port for the app's pages before anybody is told of it, and have Faust's web server serve there; its URL.

    The port is the option `web_port`, else a free one. The address is `web_bind`, 127.0.0.1 by default.
    Raises: UsageError when the port is taken.
    """
    conf: Any = app.conf
    _, options = app._default_options  # noqa: SLF001 - Faust's name; the settings do not tell a default from a choice
    sock = _bound(str(conf.web_bind), options.get("web_port") or 0)
    port = sock.getsockname()[1]
    host = conf.web_bind if _only_here(conf.web_bind) else conf.web_host
    url = URL.build(scheme="http" if conf.web_ssl_context is None else "https", host=str(host), port=port)
    object.__setattr__(conf, "web_port", port)  # Settings' own warns of what was read before
    if "canonical_url" not in options:
        object.__setattr__(conf, "canonical_url", url)
    web: Any = app.web

    def site() -> SockSite:
        return SockSite(web._runner, sock, ssl_context=conf.web_ssl_context)  # noqa: SLF001 - Faust's name

    web._transport_handlers["tcp"] = site  # noqa: SLF001
    logger.info("the app's pages are at %s", url)
    return str(url)


def _bound(bind: str, port: int) -> socket.socket:
    try:
        made = socket.create_server((bind, port), family=socket.AF_INET6 if ":" in bind else socket.AF_INET)
    except OSError as error:
        raise UsageError(
            f"the app's pages cannot be served on {bind}:{port}: {error.strerror}; leave web_port out for a free port, "
            "which is printed, or give each process its own"
        ) from error
    hold_alone(made.fileno())
    return made


def _only_here(bind: str) -> bool:
    return bind.startswith("127.") or bind in ("localhost", "::1")
