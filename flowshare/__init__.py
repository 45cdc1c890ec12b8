"""flowshare: share groups for Python."""

__version__ = "0.1.0"
