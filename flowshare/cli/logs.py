"""Logging set-up of the commands that run an app: text or JSON lines on stderr; stdout stays the application's.

Names and texts that came from outside are made safe to show, whoever logs them (`flowshare.printable`).

A line that a handler logs carries the delivery it was working on: agent, topic-partition@offset and attempt.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from flowshare.printable import one_block, printable_json

LEVELS: Final = ("debug", "info", "warning", "error")

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


REPEATING: Final = (
    "aiokafka",
    "flowshare.backend",
    "flowshare.client",
    "flowshare.fleet",
    "flowshare.server",
    "opentelemetry",
)
"""Loggers, with all below them, that tell of one outage at each of their tries."""
REPEATS_MAX: Final = 2
"""Lines of one kind that are shown in PERIOD_S seconds."""
PERIOD_S: Final = 60.0
KINDS_MAX: Final = 1000
TRACE_MAX: Final = 16_000
"""Characters of a message, and of a traceback, that are shown."""


OURS: Final = ("flowshare", "faust", "mode", "aiokafka")
"""Loggers, with all below them, that an application's own set-up does not switch off by not naming them."""


def set_up(level: str = "info", form: str = "text", worker: int | None = None, *, for_app: bool = False) -> None:
    """Configure the root logger: one handler on stderr.

    for_app: an application is loaded next, which may set logging up itself: until `settle` the handler is the one of
    last resort, so that `logging.basicConfig` finds none and works.
    level: of flowshare and the application; libraries that are chatty at INFO (mode, faust, aiokafka) start at
    WARNING unless the level is debug, and what clients say again and again is counted (`Repeats`).
    form: `text` or `json`. worker: this process's number among several, to be in each line.
    """
    formatter = JsonFormatter(worker) if form == "json" else TextFormatter(colour=sys.stderr.isatty(), worker=worker)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    if level != "debug":
        handler.addFilter(Repeats())
    root = logging.getLogger()
    root.handlers[:] = [] if for_app else [handler]
    if for_app:
        logging.lastResort = handler
    root.setLevel(level.upper())
    logging.getLogger("flowshare").setLevel(level.upper())  # whatever an application says of the root
    if level != "debug":
        for noisy in ("faust", "mode", "aiokafka", "asyncio", "aiohttp", "flowshare.agents.app.app"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def settle(*, for_start: bool = False) -> None:
    """The application is loaded: what it set up stays, and flowshare's lines stay, too.

    for_start: it is started next, and may set logging up only then: as long as it has set up nothing the handler is
    still the one of last resort.

    They go to the application's handlers of the root logger. The one on stderr is there besides, unless one of those
    writes to the terminal already; it takes the place of one that has no format of its own, which a single
    `logging.warning(…)` of a module makes. Calling it again is harmless.
    """
    root, last = logging.getLogger(), logging.lastResort
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and f"{name}.".startswith(tuple(f"{one}." for one in OURS)):
            logger.disabled = False  # dictConfig and fileConfig do so with all that they do not name
    if last is None or not isinstance(last.formatter, (TextFormatter, JsonFormatter)):
        return
    root.handlers[:] = [handler for handler in root.handlers if not _is_by_the_way(handler)]
    if for_start and not root.handlers:
        return
    if not any(getattr(handler, "stream", None) in (sys.stderr, sys.stdout) for handler in root.handlers):
        root.addHandler(last)


def _is_by_the_way(handler: logging.Handler) -> bool:
    """True if it is as `logging.warning(…)` makes one when it finds none: on stderr, with no format named."""
    written = handler.formatter
    return (
        type(handler) is logging.StreamHandler
        and handler.stream is sys.stderr
        and type(written) is logging.Formatter
        and (vars(written)["_fmt"], written.datefmt) == (logging.BASIC_FORMAT, None)
        and not handler.filters
    )


class Repeats(logging.Filter):
    """Shows REPEATS_MAX lines of a kind in PERIOD_S seconds, of the loggers in REPEATING, and counts the others.

    A kind is a logger, a level, the text before its arguments are put in, and an error's type. The last line that is
    shown says so; the first one after the period says how many there were.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._kinds: dict[object, tuple[float, int]] = {}
        """When the period of each kind began, and how many lines it has had."""

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the line is shown; its text may get an addition."""
        if not record.name.startswith(REPEATING):
            return True
        kind = (record.name, record.levelno, record.msg, record.exc_info and record.exc_info[0])
        now_s = self._monotonic()
        since_s, lines = self._kinds.get(kind, (now_s, 0))
        if lines == 0 or now_s - since_s >= PERIOD_S:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            self._kinds[kind] = (now_s, 1)
            if lines > REPEATS_MAX:
                _append(record, f" ({lines - REPEATS_MAX} more like it in the {now_s - since_s:.0f} s before)")
            return True
        self._kinds[kind] = (since_s, lines + 1)
        if lines + 1 == REPEATS_MAX:
            _append(record, f" (more like it are counted for {PERIOD_S:.0f} s, and not shown)")
        return lines < REPEATS_MAX


def _bounded(text: str) -> str:
    """A text without its middle when it is long: an error's may be a whole record."""
    return text if len(text) <= TRACE_MAX else f"{text[: TRACE_MAX // 2]}\n…\n{text[-TRACE_MAX // 2 :]}"


def _append(record: logging.LogRecord, text: str) -> None:
    record.msg, record.args = record.getMessage() + text, ()


def flush() -> None:
    """Write out what handlers and streams still hold."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


class TextFormatter(logging.Formatter):
    """`09:15:02.123 INFO    shop: [bill orders-0@17 attempt 2] text`; `[3]` before the logger in worker 3."""

    _COLOURS: Final = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}

    def __init__(self, *, colour: bool = False, worker: int | None = None) -> None:
        super().__init__()
        self._colour = colour
        self._who = "" if worker is None else f"[{worker}] "

    def format(self, record: logging.LogRecord) -> str:
        """One line, and below it, set in, what the message has more of them, and the traceback."""
        at = datetime.fromtimestamp(record.created).astimezone()
        level = record.levelname.ljust(7)
        if self._colour and (code := self._COLOURS.get(record.levelno)):
            level = f"{code}{level}\x1b[0m"
        of = getattr(record, "flowshare", "")  # set by flowshare.agents.run.logs inside handlers
        text = _bounded(f"{record.name}: {of}{record.getMessage()}")
        if record.exc_info and record.exc_info[0] is not None:
            text += "\n" + _bounded(self.formatException(record.exc_info))
        if record.stack_info:
            text += "\n" + self.formatStack(record.stack_info)
        return f"{at:%H:%M:%S}.{int(record.msecs):03d} {level} {self._who}{one_block(text)}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, worker, the delivery's fields, those of its trace, `extra=`
    fields, error."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._who: dict[str, object] = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        data: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _bounded(record.getMessage()),
            **self._who,
        }
        if agent := getattr(record, "flowshare_agent", ""):
            data.update(
                agent=agent, record=record.__dict__["flowshare_record"], attempt=record.__dict__["flowshare_attempt"]
            )
        if trace := getattr(record, "flowshare_trace_id", ""):
            data.update(trace_id=trace, span_id=record.__dict__["flowshare_span_id"])
        extra = ((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        data.update((name, value) for name, value in extra if not name.startswith("flowshare"))
        if record.exc_info and record.exc_info[0] is not None:
            data["error"] = record.exc_info[0].__name__
            data["traceback"] = _bounded("".join(traceback.format_exception(*record.exc_info)))
        return printable_json(json.dumps(data, default=str, ensure_ascii=False))
