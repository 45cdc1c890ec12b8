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
    url = f"http://{address}{page}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise Failure(f"{url} answered {error.code}: is it a worker's address for health and metrics?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise Failure(f"no worker answers at {url}: {reason}") from None
