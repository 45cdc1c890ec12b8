"""Asking a process's health pages: by the way that its own user has, else over TCP with the operator's token."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, Final

from flowshare.cli.errors import Failure

if TYPE_CHECKING:
    from flowshare.agents.own_user import Answer

_TIMEOUT_S: Final = 5.0
_WHY_MAX: Final = 300
NUMBERS_ONLY: Final = (
    "names and stacks are told to the operator: run this as the worker's user on its machine, or give it the token "
    "(FLOWSHARE_WEB_TOKEN_FILE or FLOWSHARE_WEB_TOKEN)"
)


def get(address: str, page: str) -> Any:
    """JSON of a page of the worker whose pages are at `host:port`. Raises: Failure."""
    return _ask(address, page, "GET", _TIMEOUT_S)


def post(address: str, page: str, *, timeout_s: float) -> Any:
    """JSON that a worker answers once it has done what the page asks for. Raises: Failure."""
    return _ask(address, page, "POST", timeout_s)


def _ask(address: str, page: str, method: str, timeout_s: float) -> Any:
    from flowshare.agents import own_user
    from flowshare.agents.gate import BadPages, read_token

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
    """What it says of its refusal, as one line."""
    if answer.content_type != "text/plain":
        return "is it a worker's address for health and metrics?"
    text = " ".join(answer.body[:_WHY_MAX].decode(errors="replace").split())
    return "".join(sign for sign in text if sign.isprintable())
