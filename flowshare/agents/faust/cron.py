"""`Cron` finds the next time of a cron job, by the local time of a zone, also on days on which its clocks are changed.

The rules are those of Debian's cron(8):

    job                               clocks go forward (a time is missing)    clocks go back (a time comes twice)
    at fixed times (`0 9 * * *`)      once, as soon as the clocks are changed  the first time only
    more often (`*`, `*/5` as the     as time passes: the missing times        as time passes: every hour, minute or
    minute or the hour, `@hourly`)    never come                               second that passes has its turn

So no local time of one offset comes twice, and no job stands still for the hour that clocks go back.

Between two changes of a zone, local time is UTC plus an offset; croniter, which knows no zones here, gives the local
times of a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from croniter.croniter import CroniterBadDateError, CroniterError, croniter

from flowshare.agents.handler.errors import OptionError
from flowshare.agents.handler.texts import said, shown

DAY: Final = timedelta(days=1)
STEP: Final = timedelta(hours=6)
"""Step between two looks for a change of a zone's offset."""
SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - times here have no zone: they are UTC, or local
_HAS_YEARS: Final = 7
"""Columns of an expression that names years, and so may be over for good."""


class Cron:
    """One cron expression in one zone."""

    def __init__(self, expression: str, zone: tzinfo) -> None:
        """Raises: OptionError: not a cron expression, or never due."""
        self.expression = expression
        self.zone = zone
        self._times, self._often = _parsed(expression)

    def after_ms(self, now_ms: float) -> int | None:
        """Return the first due moment later than `now_ms`, in milliseconds since 1970; None: never again."""
        utc = _EPOCH + timedelta(milliseconds=now_ms)
        found = self._as_time_passes(utc) if self._often else self._at_fixed_times(utc)
        return None if found is None else round((found - _EPOCH) / timedelta(milliseconds=1))

    def _at_fixed_times(self, utc: datetime) -> datetime | None:
        for local in self._locals(utc + self._offset(utc)):
            if (due := self._first_moment(local)) > utc:
                return due
        return None

    def _as_time_passes(self, utc: datetime) -> datetime | None:
        """Find the next time from one change of the zone to the next; between them local and real times run alike."""
        while True:
            offset = self._offset(utc)
            local = next(self._locals(utc + offset), None)
            if local is None:
                return None
            change = self._change(utc, local - offset)
            if change is None:
                return local - offset
            then = change + self._offset(change)
            if next(self._locals(then - SECOND), None) == then:
                return change
            utc = change

    def _locals(self, local: datetime) -> Iterator[datetime]:
        """Yield the job's local times, later than this one."""
        self._times.set_current(local, force=True)
        try:
            while True:
                yield self._times.get_next(datetime)
        except CroniterBadDateError:
            return

    def _offset(self, utc: datetime) -> timedelta:
        return utc.replace(tzinfo=UTC).astimezone(self.zone).utcoffset() or timedelta()

    def _first_moment(self, local: datetime) -> datetime:
        """Return the first moment with this local time; for a left-out time, the moment when clocks are set forward."""
        offsets = {self._offset(local - DAY), self._offset(local + DAY)}
        real = [local - offset for offset in offsets if self._offset(local - offset) == offset]
        if real:
            return min(real)
        change = self._change(local - DAY, local + DAY)
        return local - min(offsets) if change is None else change

    def _change(self, begin: datetime, end: datetime) -> datetime | None:
        """Return the first second after `begin`, up to `end`, with another offset than `begin`; None: there is none."""
        begin = begin.replace(microsecond=0)  # offsets change at whole seconds
        offset = self._offset(begin)
        while self._offset(step := min(begin + STEP, end)) == offset:
            if step >= end:
                return None
            begin = step
        same, seconds = 0, int((step - begin) / SECOND)
        while seconds - same > 1:
            middle = (same + seconds) // 2
            if self._offset(begin + middle * SECOND) == offset:
                same = middle
            else:
                seconds = middle
        return begin + seconds * SECOND


def _parsed(expression: str) -> tuple[croniter, bool]:
    """Return the times of an expression, and True if its minute or hour is like `*`. Raises: OptionError."""
    if not isinstance(expression, str):
        raise OptionError(f"a cron expression is a text, such as '0 9 * * mon-fri', not {shown(expression)}")
    try:
        columns = croniter.expand(expression)[0]
        times = croniter(expression, datetime.now(UTC).replace(tzinfo=None))
    except (CroniterError, ValueError, TypeError, AttributeError) as error:
        raise OptionError(
            f"{shown(expression)} is no cron expression ({said(error)}): write five columns for minute, hour, day, "
            "month and weekday, such as '0 9 * * mon-fri'"
        ) from None
    if len(columns) < _HAS_YEARS:
        try:
            times.get_next(datetime)
        except CroniterBadDateError:
            raise OptionError(f"cron expression {shown(expression)} is never due: there is no such day") from None
    written = expression.split()
    quick = [column for column in (*columns[:2], *columns[5:6]) if column[:1] == ["*"]]
    return times, bool(quick) or any(text.startswith("*") for text in (*written[:2], *written[5:6]))


def zone_of(given: str | tzinfo) -> tzinfo:
    """Return a zone, or the zone of this name. Raises: OptionError."""
    if isinstance(given, tzinfo):
        return given
    try:
        return ZoneInfo(given)
    except (KeyError, ValueError, TypeError, OSError):
        raise OptionError(
            f"timezone={shown(given)} is no time zone: write timezone=ZoneInfo('Europe/Berlin') (of `zoneinfo`)"
        ) from None
