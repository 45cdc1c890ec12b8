"""Asking a worker's health pages."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Final

from flowshare.cli.errors import Failure

_TIMEOUT_S: Final = 5.0


def get(address: str, page: str) -> Any:
    """JSON of a page of the worker whose pages are at `host:port`. Raises: Failure."""
    return _ask(address, page, "GET", _TIMEOUT_S)


def post(address: str, page: str, *, timeout_s: float) -> Any:
    """JSON that a worker answers once it has done what the page asks for. Raises: Failure."""
    return _ask(address, page, "POST", timeout_s)


def _ask(address: str, page: str, method: str, timeout_s: float) -> Any:
    url = f"http://{address}{page}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=timeout_s) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise Failure(f"{url} answered {error.code}: is it a worker's address for health and metrics?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Failure(f"no worker answers at {url}: {reason}") from None
