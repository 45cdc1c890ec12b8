"""The dead letter: the record as it was, and headers that say why it is there and where it came from."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING, Final

from flowshare.agents.chunk import Chunk
from flowshare.agents.retry_topic import PREFIX as RETRY_PREFIX
from flowshare.agents.send import Produce
from flowshare.protocol.decoding import DecodedRecord

if TYPE_CHECKING:
    from types import TracebackType

    from flowshare.agents.outcomes import Outcome

PREFIX: Final = "flowshare.dlq."
REASON_MAX: Final = 1_000
TRACE_MAX: Final = 8_000


def dead_letter(topic: str, group: str, chunk: Chunk, record: DecodedRecord, outcome: Outcome) -> Produce:
    """The dead letter of a record: key, value and headers as they were, `flowshare.dlq.*` headers added.

    Headers of an earlier dead letter (a replayed record that died again) are replaced.
    """
    headers = [(name, value) for name, value in record.headers if not name.startswith((PREFIX, RETRY_PREFIX))]
    error = outcome.error
    described = {
        "reason": clip(outcome.reason, REASON_MAX),
        "exception": "" if error is None else f"{type(error).__module__}.{type(error).__qualname__}",
        "trace": "" if error is None else trace(error),
        "topic": chunk.topic,
        "partition": str(chunk.partition),
        "offset": str(chunk.place(record.offset)),
        "attempts": str(record.delivery_count),
        "agent": chunk.agent,
        "group": group,
        "timestamp": str(record.timestamp_ms),
    }
    headers += [(PREFIX + name, text.encode("utf-8", "replace")) for name, text in described.items()]
    return Produce(topic, record.value, record.key, tuple(headers), None, None)


def without_trace(letter: Produce) -> Produce:
    """The same letter, smaller."""
    left = tuple((name, value) for name, value in letter.headers if name != PREFIX + "trace")
    return letter._replace(headers=left)


def trace(error: BaseException) -> str:
    """The traceback as text, its end when it is long: that is where the error was raised."""
    try:
        text = "".join(traceback.format_exception(type(error), error, of_user(error)))
    except Exception:  # noqa: BLE001 - the user's __str__ may raise
        return type(error).__qualname__
    return text if len(text) <= TRACE_MAX else "…" + text[-TRACE_MAX:]


def of_user(error: BaseException) -> TracebackType | None:
    """The error's traceback without the frames of flowshare that called the handler."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_globals.get("__name__", "").startswith("flowshare.agents."):
        found = found.tb_next
    return found or error.__traceback__


def place_of(error: BaseException) -> str:
    """The line of user code nearest to the error, `file.py:12 in function`."""
    found, place = of_user(error), "in no code of the app"
    while found is not None:
        code = found.tb_frame.f_code
        place = f"{os.path.basename(code.co_filename)}:{found.tb_lineno} in {code.co_name}"
        found = found.tb_next
        if (
            "/lib/python" not in code.co_filename
            and found is not None
            and "/lib/python" in found.tb_frame.f_code.co_filename
        ):
            break
    return place


def clip(text: str, length: int) -> str:
    """At most `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"
