"""Steps through `flowshare.client`: share consumers on connections to the in-process server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.scenarios.server import ServerSubject


class ClientSteps:
    """The part of the server subject that knows consumers."""

    def __init__(self, subject: ServerSubject) -> None:
        self.subject = subject

    async def close(self) -> None:
        """Close all consumers."""
