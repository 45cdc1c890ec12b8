"""Running workers, asked by their health pages: `flowshare inflight`, `drain`, `resize`, and `ask` for other commands.

A page is asked for by the way that the worker's own user has, else over TCP with the operator's token.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import TYPE_CHECKING, Any, Final

import click

from flowshare.agents.handler.texts import age
from flowshare.backend import parse_broker
from flowshare.cli.acting import of_deed
from flowshare.cli.options import app_broker, broker_url, debug_option, json_option
from flowshare.cli.output import emit_json, headings, say, show
from flowshare.ops import Failure
from flowshare.ops.deeds import DEEDS
from flowshare.ops.session import embedded_path

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from flowshare.agents.pages.own_user import Answer

_TIMEOUT_S: Final = 5.0
_WHY_MAX: Final = 300
NUMBERS_ONLY: Final = (
    "names and stacks are told to the operator: run this as the worker's user on its machine, or give it the token "
    "(FLOWSHARE_WEB_TOKEN_FILE or FLOWSHARE_WEB_TOKEN)"
)


def ask(address: str, page: str, *, method: str = "GET", timeout_s: float = _TIMEOUT_S) -> Any:
    """JSON that the worker with pages at `host:port` answers, once it has done what it is asked. Raises: Failure."""
    from flowshare.agents.pages import own_user
    from flowshare.agents.pages.gate import BadPages, read_token

    url = f"http://{address}{page}"
    try:
        answer = own_user.ask(address, page, method=method, timeout_s=timeout_s, token=read_token())
    except (own_user.OtherUser, BadPages) as error:
        raise Failure(str(error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise Failure(f"no worker answers at {url}: {error or type(error).__name__}") from None
    if answer.status != 200:
        raise Failure(f"{url} answered {answer.status}: {_why(answer)}")
    try:
        return json.loads(answer.body)
    except ValueError:
        raise Failure(f"{url} answered no JSON: is it a worker's address for health and metrics?") from None


def _why(answer: Answer) -> str:
    """Return the reason that an answer gives for its refusal, as one line."""
    said = answer.body[:_WHY_MAX].decode(errors="replace")
    if answer.content_type == "application/json":
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            said = str(json.loads(answer.body)["error"])[:_WHY_MAX]
    elif answer.content_type != "text/plain":
        return "is it a worker's address for health and metrics?"
    text = " ".join(said.split())
    return "".join(sign for sign in text if sign.isprintable())


Rows = list[dict[str, Any]]

_COLUMNS: Final = headings("worker", "agent", "topic", "partition", "offset", "attempt", "age", "lock_left", "blocked")
_RIGHT: Final = ("partition", "offset", "attempt", "age", "lock_left", "blocked")


@click.command("inflight")
@click.argument("app_path", metavar="[MODULE:APP]", required=False)
@click.option("--broker", metavar="URL", help="Instead of an app: the broker that the workers run on.")
@click.option(
    "--web", "addresses", metavar="HOST:PORT", multiple=True, help="Ask the worker with these health pages; repeatable."
)
@click.option("--stacks", is_flag=True, help="Show where each handler is.")
@json_option
@debug_option
def inflight(app_path: str | None, broker: str | None, addresses: tuple[str, ...], stacks: bool, as_json: bool) -> None:
    """Show the records that running workers are working on, oldest first.

    The workers of an embedded path are found by it. On other brokers name them: --web with the address that a worker
    prints when it is ready.
    """
    workers = (
        named_workers(addresses)
        if addresses
        else _workers(app_broker(app_path) if app_path else broker_url(broker, None))
    )
    rows, silent = _ask_all(workers, "/inflight?stacks=1" if stacks else "/inflight")
    if silent and len(silent) == len(workers):
        raise Failure(silent[0])
    for text in silent:
        say(f"warning: {text}", err=True)
    if as_json:
        emit_json(rows)
    elif stacks:
        _print_stacks(rows, several=len(workers) > 1)
    else:
        _print_table(rows, several=len(workers) > 1)


def named_workers(addresses: tuple[str, ...]) -> dict[str, str]:
    """Address of each worker by what it is called. Raises: BadParameter (it is not HOST:PORT)."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise click.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--web")
    return {address: address for address in addresses}


def _supervisors(url: str) -> dict[str, str]:
    """Address of each supervisor of an embedded path, by what it is called. Raises: Failure."""
    from flowshare.backend.path_workers import running_workers

    path = embedded_path(url)
    if path is None:
        raise Failure(
            f"the supervisors on {parse_broker(url)} are not known to it: name one by --web host:port, the address "
            "that it prints when it starts"
        )
    found = {one.supervisor: one.supervisor for one in running_workers(path) if one.supervisor}
    if not found:
        raise Failure(f"no supervisor has workers on {url}: start some with `flowshare worker --procs N`")
    return found


def _workers(url: str, *, by_supervisor: bool = False) -> dict[str, str]:
    """Address of each worker of an embedded path, by what it is called; by_supervisor: of a supervisor in place of its
    workers. Raises: Failure."""
    from flowshare.backend.path_workers import running_workers

    path = embedded_path(url)
    if path is None:
        raise Failure(
            f"the workers on {parse_broker(url)} are not known to it: name them by --web host:port, the address that "
            "each prints when it is ready"
        )
    found: dict[str, str] = {}
    for entry in running_workers(path):
        if by_supervisor and entry.supervisor:
            found[f"supervisor {entry.supervisor}"] = entry.supervisor
        else:
            found[str(entry.pid)] = entry.address
    if not found:
        raise Failure(f"no worker runs on {url}")
    return found


def _ask_all(workers: dict[str, str], page: str) -> tuple[Rows, list[str]]:
    """Ask all workers for their running work. Return the rows, oldest first, and the reasons of workers that did not
    answer."""
    rows: Rows = []
    silent: list[str] = []
    hidden = False
    for name, address in workers.items():
        try:
            found = [{"worker": name, **row} for row in ask(address, page)]
            hidden = hidden or any("agent" not in row for row in found)
            rows += [{"agent": "-", "topic": "-", **row} for row in found]
        except Failure as failure:
            silent.append(f"worker {name}: {failure}")
    if hidden:
        say(f"warning: {NUMBERS_ONLY}", err=True)
    return sorted(rows, key=lambda row: -row["age_s"]), silent


def _shown(rows: Rows) -> Rows:
    return [
        {**row, "age": age(row["age_s"]), "lock_left": age(row["lock_left_s"]) if row["lock_left_s"] > 0 else "lapsed"}
        for row in rows
    ]


def _print_table(rows: Rows, *, several: bool) -> None:
    columns = {key: heading for key, heading in _COLUMNS.items() if several or key != "worker"}
    show(_shown(rows), columns, as_json=False, empty="nothing is in flight", right=_RIGHT)


def _print_stacks(rows: Rows, *, several: bool) -> None:
    for row in _shown(rows):
        who = f"worker {row['worker']}: " if several else ""
        say(
            f"{who}{row['agent']} {row['topic']}-{row['partition']}@{row['offset']} attempt {row['attempt']}, "
            f"for {row['age']}, lock left {row['lock_left']}"
        )
        for line in row.get("stack", "").splitlines():
            say(f"  {line}")
    if not rows:
        say("nothing is in flight", err=True)


def _only(kind: str, known: dict[str, str]) -> str:
    """The address of the only one. kind: its name in an error. Raises: Failure (there are several)."""
    if len(known) > 1:
        listed = ", ".join(name if name == address else f"{name} at {address}" for name, address in known.items())
        raise Failure(f"several {kind}s run there, {listed}: name one of them by --web")
    return next(iter(known.values()))


async def _order(address: str, page: str, timeout_s: float, figure: str) -> float:
    """Have the worker or supervisor with these pages act; the figure of its answer (`ops.deed.Order`). Raises:
    Failure."""
    found = ask(address, page, method="POST", timeout_s=timeout_s)
    told = found.get(figure) if isinstance(found, dict) else None
    if not isinstance(told, int | float):
        raise Failure(f"http://{address}{page} answered without {figure!r}: is it a worker or supervisor of flowshare?")
    return float(told)


def _at_once(act: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of an act that waits for nothing but `_order`.

    It runs without a loop: there the first Ctrl-C would only be noted, and `ask` would go on until its time-out.
    """
    try:
        act.send(None)
    except StopIteration as done:
        return done.value
    act.close()
    raise RuntimeError("an act on a worker waited for something else than its order")


def _ordering(name: str, who: str, find: Callable[[str], str], said: str = "") -> click.Command:
    """Return the command of a deed on a worker. who: of which kind. find: its address on a log. said: other words."""
    deed = DEEDS[name]

    @click.argument("app_path", metavar="[MODULE:APP]", required=False)
    @click.option("--broker", metavar="URL", help=f"Instead of an app: the embedded path that the {who} on.")
    @debug_option
    def call(app_path: str | None, broker: str | None, **texts: Any) -> None:
        given = deed.check(texts)
        if given["worker"] is None:
            given["worker"] = find(app_broker(app_path) if app_path else broker_url(broker, None))
        result = _at_once(deed.act(_order, dry_run=False, **given))
        say(said or deed.said(result, **given))

    return of_deed(deed, call)


drain: Final = _ordering(
    "drain",
    "worker runs",
    lambda url: _only("worker", _workers(url, by_supervisor=True)),
    "drained: everything that was begun is finished",
)
resize: Final = _ordering("resize", "workers run", lambda url: _only("supervisor", _supervisors(url)))
