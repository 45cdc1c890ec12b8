"""How many records an agent holds: those in its slots, and what the slots finish in about 50 ms.

Slow handlers keep next to nothing in the buffer, so that other members find work; fast ones keep thousands, so that
no slot waits for the next fetch. The speed is measured: records finished per second of work.
"""

from __future__ import annotations

from typing import Final

AHEAD_S: Final = 0.05
"""How long the buffer should last."""
AHEAD_CAREFUL_S: Final = 0.2
"""The same where giving back costs an attempt: a fetch takes longer there, and nothing is held until it is sure to run
soon."""
STUCK_S: Final = 1.0
"""After so long without any record finished, the buffer is given back."""
BUFFER_MAX: Final = 8_000
_WINDOW_S: Final = 0.005
_WINDOW_RECORDS: Final = 500


class Prefetch:
    """Measures the handlers' speed and says how many records to hold. Times are monotonic seconds."""

    __slots__ = ("_busy_s", "_careful", "_count", "_fixed", "_rate", "_slots", "progress_at", "stuck")

    def __init__(self, slots: int, *, fixed_buffer: int = 0, careful: bool = False, now: float = 0.0) -> None:
        """slots: records that handlers hold at once. fixed_buffer: hold at least so many more (a whole batch).

        careful: giving back costs an attempt, so nothing is held that may have to go back.
        """
        self._careful = careful
        self._slots = slots
        self._fixed = fixed_buffer
        self._rate: float | None = None
        self._count = 0
        self._busy_s = 0.0
        self.progress_at = now
        self.stuck = False
        """Whether nothing finished for so long that nothing more should be buffered."""

    def begun(self, now: float) -> None:
        """The pool gets work after it had none: the time before does not count."""
        self.progress_at = now

    def finished(self, count: int, now: float) -> None:
        """Records finished."""
        self._busy_s += now - self.progress_at
        self._count += count
        self.progress_at = now
        self.stuck = False
        if self._busy_s < _WINDOW_S and self._count < _WINDOW_RECORDS:
            return
        measured = self._count / max(self._busy_s, 1e-6)
        self._rate = measured if self._rate is None else (self._rate + measured) / 2
        self._busy_s = 0.0
        self._count = 0

    def still_running(self, busy: int, now: float, *, full: bool) -> bool:
        """Look at the time since something finished; returns whether the buffer is to be given back.

        busy: records that handlers hold. full: what is buffered cannot be begun.
        """
        waited_s = now - self.progress_at
        if waited_s > 0.25 and self._rate is not None:
            self._rate = min(self._rate, max(busy, 1) / waited_s)
        if waited_s < STUCK_S or not full:
            return False
        self.stuck = True
        return True

    @property
    def target(self) -> int:
        """How many records to hold in all."""
        if self.stuck:
            return self._slots
        if self._careful:
            ahead = 0 if self._rate is None else int(self._rate * AHEAD_CAREFUL_S)
            return self._slots + max(min(BUFFER_MAX, ahead), self._fixed)
        # Until the speed is known as many wait as run; what slow handlers do not get to goes back.
        wanted = self._slots if self._rate is None else int(self._rate * AHEAD_S)
        ahead = min(BUFFER_MAX, wanted)
        return self._slots + max(1, ahead, self._fixed)
