"""`flowshare console`, and `flowshare console-login` for its file of logins."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from flowshare.cli import logs
from flowshare.cli.options import DIRECTORY, broker_options, debug_option, log_options
from flowshare.cli.output import say
from flowshare.cli.pages import named_workers
from flowshare.ops import Failure
from flowshare.ops.session import embedded_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.console.schemas import Schemas
    from flowshare.console.server import ConsoleSettings
    from flowshare.console.values import Values

FOLDER: Final = "console"
PORT: Final = 8090


@click.command("console")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: a free one.")
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--host", "hosts", metavar="HOST", multiple=True, help="A host by which browsers ask; may be repeated.")
@click.option("--web", "addresses", metavar="HOST:PORT", multiple=True, help="Pages of a worker; may be repeated.")
@click.option(
    "--logins", "login_file", type=click.Path(path_type=Path), help="Who may log in (console-login writes it)."
)
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate, PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key, where it is not in the same file.")
@click.option("--insecure", is_flag=True, help="On other addresses than this machine's, too, without TLS or logins.")
@click.option("--data", type=DIRECTORY, help="Folder of history and audit.  [default: the log's, else yours]")
@click.option(
    "--mask", "masks", metavar="FIELD", multiple=True, help="A field of values that is not shown; repeatable."
)
@click.option(
    "--registry",
    "registry_url",
    metavar="URL",
    help="Schema registry, to show values by their schemas; its login is in FLOWSHARE_REGISTRY_AUTH.",
)
@click.option("--registry-ca", type=click.Path(path_type=Path), help="CA that its certificate is checked with, PEM.")
@log_options
@broker_options
def console(
    port: int,
    bind: str,
    hosts: tuple[str, ...],
    addresses: tuple[str, ...],
    login_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    data: Path | None,
    masks: tuple[str, ...],
    registry_url: str | None,
    registry_ca: Path | None,
    log_level: str,
    log_format: str,
    url: str,
) -> None:
    """Show in a browser what every group does, why one stands still and who holds what, and act on it.

    It prints an address with a token in it, for this machine's browser; whoever has it is the operator. With --logins
    people log in instead, as viewers or operators, and with --tls-cert it may be reached from elsewhere.

    Workers of an embedded path are found by it; others are named by --web, to show what their handlers do.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise Failure("the console needs Jinja2: pip install 'flowshare[console]'")
    from flowshare.agents.pages.gate import read_hosts
    from flowshare.console.logins import LoginFile
    from flowshare.console.server import ConsoleSettings
    from flowshare.console.values import Values
    from flowshare.server.security.tls import ServerTls

    named_workers(addresses)
    logs.set_up(log_level, log_format)
    if tls_key is not None and tls_cert is None:
        raise click.UsageError("--tls-key goes with --tls-cert")
    settings = ConsoleSettings(
        port=port,
        bind=bind,
        hosts=read_hosts(hosts),
        tls=None if tls_cert is None else ServerTls(certificate=tls_cert, key=tls_key).context(),
        logins=None if login_file is None else LoginFile(login_file),
        insecure=insecure,
    )
    settings.check()
    schemas = None if registry_url is None else schemas_of(registry_url, registry_ca)
    values = Values(masks, schemas)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(url, settings, addresses=addresses, folder=data or data_folder(url), values=values))
    if schemas is not None:
        schemas.close()


async def serve(
    url: str, settings: ConsoleSettings, *, addresses: tuple[str, ...] = (), folder: Path, values: Values
) -> None:
    """Serve the console until SIGTERM or Ctrl-C. Raises: ConsoleError, OSError, NotPrivate."""
    from flowshare.agents.pages.gate import read_token
    from flowshare.cli.worker_pages import Workers
    from flowshare.clock import LoopClock
    from flowshare.console.agents import AgentWatch
    from flowshare.console.collector import Collector
    from flowshare.console.pages.page import View
    from flowshare.console.server import ConsoleServer
    from flowshare.console.slots import Slots
    from flowshare.console.source import Source
    from flowshare.console.store import Store

    clock = LoopClock()
    ended = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        store = Store(folder)
        await store.open()
        stack.push_async_callback(store.close)
        source, workers = Source(url), Workers(url, addresses, read_token())
        stack.push_async_callback(source.close)
        stack.callback(workers.close)
        agents = AgentWatch(workers, store, clock, messages=not values.hides)
        stack.push_async_callback(agents.close)
        collector = Collector(source, store, clock, agents)
        stack.push_async_callback(collector.close)
        view = View(
            source=source,
            workers=workers,
            collector=collector,
            store=store,
            agents=agents,
            slots=Slots(url, clock),
            clock=clock,
            values=values,
        )
        server = ConsoleServer(settings, view)
        stack.push_async_callback(server.close)
        collector.start()
        agents.start()
        await server.start()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        say(f"console: {server.url}")
        await ended.wait()


def schemas_of(registry_url: str, ca: Path | None) -> Schemas:
    """Return the schemas of a registry. Raises Failure: bad address, or its client is not installed."""
    from flowshare.agents.codecs.registry import Registry
    from flowshare.agents.handler.errors import OptionError

    try:
        registry = Registry(registry_url, tls=ca, timeout=2)
        from flowshare.console.schemas import Schemas

        return Schemas(registry)
    except OptionError as error:
        raise Failure(f"--registry: {error}") from None


def data_folder(url: str) -> Path:
    """Return the folder of history and audit: in an existing embedded path, else in the user's own state folder, by the
    log's address. (In a path without storage the folder would stop a new storage, which needs an empty directory.)"""
    from flowshare.log.folder import place_of
    from flowshare.log.owner import STORE_DIRECTORY

    path = embedded_path(url)
    if path is not None and (place_of(path) / STORE_DIRECTORY).is_dir():
        return place_of(path) / FOLDER
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "flowshare" / FOLDER / hashlib.sha256(url.encode()).hexdigest()[:16]


@click.command("console-login")
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator"]), default="viewer", show_default=True)
@click.option("--file", "path", type=click.Path(path_type=Path), required=True, help="The file of logins.")
@click.password_option(help="Asked for when it is not given.")
@debug_option
def console_login(name: str, role: str, path: Path, password: str) -> None:
    """Add somebody to the console's file of logins, or give somebody another role or password."""
    from flowshare.console import logins

    login = logins.make(name, logins.Role(role), password)
    known: Mapping[str, logins.Login] = logins.LoginFile(path, empty=True).logins() if path.exists() else {}
    logins.write(path, {**known, name: login})
    say(f"{name} is {role} now; whoever is logged in under this name logs in again")
