"""`Record`: Faust's model class under flowshare's name."""

from __future__ import annotations

from faust import Record

__all__ = ["Record"]
