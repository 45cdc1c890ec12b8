"""What all partitions together keep in memory: within a bound, the runs that were read longest ago go first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowshare.fleet.log.chunk import Chunk
    from flowshare.fleet.log.run import Run
    from flowshare.fleet.log.settings import LogSettings


class Memory:
    """size: bytes of all runs, at most `ahead_bytes` behind each call. lanes: how many share them."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._by_use: OrderedDict[Run, None] = OrderedDict()
        self.size = 0
        self.lanes = 0

    @property
    def allowance(self) -> int:
        """Bytes that one lane's run at the log's end may hold."""
        settings = self._settings
        share = settings.ahead_bytes // max(1, self.lanes)
        return max(settings.ahead_least_bytes, min(share, settings.ahead_partition_bytes))

    def used(self, run: Run) -> None:
        """Somebody reads it."""
        self._by_use[run] = None
        self._by_use.move_to_end(run)

    def add(self, run: Run, chunk: Chunk, *, kept: int) -> None:
        """The run goes on; what was read of it goes as far as it is larger than `kept`."""
        run.add(chunk)
        self.size += chunk.size
        if run not in self._by_use:
            self.used(run)
        while run.size > kept and (size := run.drop(given_only=True)):
            self.size -= size
        while self.size > self._settings.ahead_bytes and self._by_use:
            oldest = next(iter(self._by_use))
            size = oldest.drop(given_only=False)
            self.size -= size
            if not size:
                del self._by_use[oldest]

    def cut(self, run: Run, end: int) -> None:
        """Forget what lies at `end` and behind."""
        self.size -= run.cut(end)

    def forget(self, run: Run) -> None:
        """The run is not wanted any more."""
        while size := run.drop(given_only=False):
            self.size -= size
        self._by_use.pop(run, None)
