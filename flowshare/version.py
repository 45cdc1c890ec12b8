"""The version of flowshare, which the wheel takes from here; this module imports nothing."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
