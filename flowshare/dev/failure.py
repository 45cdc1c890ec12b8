"""The one error of the throw-away broker. It is here alone so that everything beside it can raise it."""

from __future__ import annotations


class DevFailure(Exception):
    """A broker cannot be had, started or ended. The text says what to do, and shows the end of its log."""
