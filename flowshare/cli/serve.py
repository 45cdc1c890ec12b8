"""`flowshare serve`: a broker for development, over an embedded log, for clients of any language."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowshare.cli import logs
from flowshare.cli.options import IN_MEMORY, MEMORY_OR_DIRECTORY, PageOptions, debug_option, log_options, page_options
from flowshare.cli.output import say
from flowshare.clock import LoopClock, new_loop
from flowshare.ops import Failure

if TYPE_CHECKING:
    from typing import Any

    from flowshare.agents.pages.gate import PageSettings
    from flowshare.server.security.tls import ClientCertificates, ServerTls
    from flowshare.server.standalone import StandaloneOptions

logger = logging.getLogger("flowshare.serve")

existing = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("serve")
@click.option(
    "--data",
    required=True,
    type=MEMORY_OR_DIRECTORY,
    metavar="PATH",
    help="Where the log is kept; :memory: keeps nothing.",
)
@click.option("--listen", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT", help="Port 0: a free one.")
@click.option("--advertise", metavar="HOST:PORT", help="Where clients are told to connect.  [default: --listen]")
@click.option("--config", type=existing, help="Settings by Kafka's names, as in a server.properties.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting; goes before --config's.")
@click.option("--tls-cert", type=existing, help="The server's certificate (PEM); turns TLS on.")
@click.option("--tls-key", type=existing, help="Its key, when it is not in the same file.")
@click.option("--tls-ca", type=existing, help="Whose client certificates are trusted.")
@click.option(
    "--tls-client-auth",
    type=click.Choice(["none", "requested", "required"]),
    help="Whether clients show a certificate.  [default: requested with --tls-ca, else none]",
)
@click.option("--sasl-users", type=existing, help="File of users (name=password); clients have to log in.")
@click.option(
    "--sasl-mechanisms",
    metavar="NAME,…",
    help="How clients log in: SCRAM-SHA-512, SCRAM-SHA-256, PLAIN.  [default: all, PLAIN with TLS only]",
)
@click.option("--acls", type=existing, help="File of ACLs; what none allows is refused.")
@click.option("--super-user", "super_users", multiple=True, metavar="User:NAME", help="May do everything.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without TLS, logins or ACLs.")
@partial(page_options, port="Serve health and metrics there; 0: a free port.  [default: they are not served]")
@log_options
@debug_option
def serve(pages: PageOptions, log_level: str, log_format: str, **given: Any) -> int:
    """Serve a log to Kafka clients: a broker for development, alone on its data.

    Prints `listening on HOST:PORT` when it is ready. Ctrl-C, SIGTERM or SIGHUP: connections are closed, what
    was confirmed is on disk, exit code 0; a second Ctrl-C ends at once with 130. Exit code 1: a failure.
    """
    logs.set_up(log_level, log_format)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(_options(**given), _pages(pages)))
    return 0


def _pages(pages: PageOptions) -> PageSettings | None:
    """Where health and metrics are served; None: nowhere. Raises: UsageError, BadPages."""
    if pages.port is not None:
        return pages.settings()
    if pages.hosts or pages.token_file is not None or pages.bind != "127.0.0.1":
        raise click.UsageError("--web-bind, --web-host and --web-token-file go with --web-port")
    return None


def _options(
    *,
    data: Path,
    listen: str,
    advertise: str | None,
    config: Path | None,
    words: tuple[str, ...],
    sasl_users: Path | None,
    sasl_mechanisms: str | None,
    acls: Path | None,
    super_users: tuple[str, ...],
    insecure: bool,
    **tls: Any,
) -> StandaloneOptions:
    from flowshare.server.security.sasl import words_of
    from flowshare.server.settings import parse_words, read_properties
    from flowshare.server.standalone import Address, StandaloneOptions

    settings = read_properties(config) if config is not None else {}
    return StandaloneOptions(
        data=None if data is IN_MEMORY else data,
        listen=Address.parse(listen),
        advertise=Address.parse(advertise) if advertise else None,
        settings={**settings, **parse_words(words)},
        tls=_tls(**tls),
        users_file=sasl_users,
        mechanisms=None if sasl_mechanisms is None else words_of(sasl_mechanisms),
        acl_file=acls,
        super_users=super_users,
        insecure=insecure,
    )


def _tls(*, tls_cert: Path | None, tls_key: Path | None, tls_ca: Path | None, tls_client_auth: Any) -> ServerTls | None:
    if tls_cert is None:
        if tls_key or tls_ca or tls_client_auth:
            raise click.UsageError(
                "--tls-key, --tls-ca and --tls-client-auth need the server's certificate: --tls-cert"
            )
        return None
    from flowshare.server.security.tls import ServerTls

    asked: ClientCertificates = tls_client_auth or ("requested" if tls_ca else "none")
    return ServerTls(certificate=tls_cert, key=tls_key, ca=tls_ca, client_certificates=asked)


async def _serve(options: StandaloneOptions, pages: PageSettings | None) -> None:
    from flowshare.agents.worker.keeper import either
    from flowshare.garbage import Tuning
    from flowshare.log.descriptors import raise_limit
    from flowshare.server.settings import Settings
    from flowshare.server.standalone import Standalone
    from flowshare.web.broker import BrokerPages

    stop = _stop_signals()
    raise_limit(Settings.parse(options.settings).limits.connections_max)
    broker, tuning = Standalone(options, clock=LoopClock()), Tuning()
    served: BrokerPages | None = None
    tuning.apply()
    try:
        await broker.start()
        if options.insecure and not options.listen.loopback:
            logger.warning("%s can be reached from other machines, and some protection is off", options.listen)
        if pages is not None:
            served = BrokerPages(broker.stats, pages, LoopClock())
            logger.info("health and metrics at http://%s", await served.start())
        say(f"listening on {broker.address}")
        lost = asyncio.ensure_future(broker.until_lost())
        try:
            await either(lost, stop)
            logger.info("closing")
            if lost.done():
                raise Failure(lost.result())
        finally:
            lost.cancel()
    finally:
        tuning.undo()
        if served is not None:
            await served.close()
        await broker.close()


def _stop_signals() -> asyncio.Event:
    """Set at the first SIGTERM, SIGHUP or SIGINT; a second SIGINT ends the process."""
    from flowshare.agents.worker.signals import EXIT_INTERRUPTED, stop_signals

    stop = asyncio.Event()

    def interrupted() -> None:
        if stop.is_set():
            logs.flush()
            os._exit(EXIT_INTERRUPTED)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, interrupted if number == signal.SIGINT else stop.set)
    return stop
