"""Actions of the console, in one table: deeds (`ops.deeds`) with a form. Its button shows the command.

An action takes two steps: the first shows the command and what would happen (`preview`), the second carries it out
(`act`). Only operators act. Each action is written down before it is carried out (`store`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from flowshare.console.forms import GROUP, Action, Field, Params, Texts, typed
from flowshare.console.source import ACT_S
from flowshare.ops.deeds import DEEDS
from flowshare.share.types import Priority

REPLAY_LIMIT_S: Final = 1800.0


def _setting(name: str, title: str, setting: Field, value: Field) -> Action:
    return Action(
        name=name,
        title=title,
        deed=DEEDS["groups config"],
        fields=(GROUP, setting, value),
        texts=lambda params: {"group": [params["group"]], "settings": [f"{params['setting']}={params['value']}"]},
        limit_s=ACT_S,
    )


def _reset_texts(params: Params) -> Texts:
    to, at = params["to"], params["at"]
    option = {"time": "to_datetime", "offset": "to_offset"}.get(to, f"to_{to}")
    return {
        "group": [params["group"]],
        "topics": [params["topic"]],
        option: [at if to in ("time", "offset") else "yes"],
    }


def _intervention(name: str, title: str) -> Action:
    return Action(
        name=name,
        title=title,
        deed=DEEDS[f"groups {name.replace('_', '-')}"],
        fields=(GROUP, Field("topic"), Field("partition"), typed("ranges", "offsets", "5-9, 12", many=True)),
        limit_s=ACT_S,
        back=lambda params: f"stuck?{urlencode({'group': params['group']})}",
    )


_ALL: Final = (
    Action(name="pause", title="Pause", deed=DEEDS["groups pause"], fields=(GROUP,), limit_s=ACT_S),
    Action(name="resume", title="Resume", deed=DEEDS["groups resume"], fields=(GROUP,), limit_s=ACT_S),
    _setting(
        "set",
        "Change a setting",
        typed("setting", "setting"),
        typed("value", "value", "empty: the default", optional=True),
    ),
    _setting(
        "limit",
        "Limit",
        Field("setting", choices=("share.max.in.flight",)),
        typed("value", "records in flight", "of the whole group; empty: no limit", optional=True),
    ),
    _setting(
        "rate",
        "Limit the rate",
        Field("setting", choices=("share.max.rate",)),
        typed("value", "records", "of the whole group: 100/s, 10/m, 2/h; empty: no limit", optional=True),
    ),
    _setting(
        "priority",
        "Priority",
        Field("setting", choices=("share.delivery.priority",)),
        typed("value", "first", choices=tuple(str(one) for one in Priority)),
    ),
    Action(
        name="reset",
        title="Reset offsets",
        deed=DEEDS["groups reset-offsets"],
        fields=(
            GROUP,
            typed("to", "to", choices=("earliest", "latest", "offset", "time")),
            typed("at", "offset or time", "2026-11-21T09:00:00 is UTC", optional=True),
            typed("topic", "topic", "empty: all it has", optional=True),
        ),
        texts=_reset_texts,
        limit_s=ACT_S,
    ),
    Action(
        name="unpark",
        title="Let the key go on",
        deed=DEEDS["dlq unpark"],
        fields=(GROUP, Field("topic"), Field("partition"), Field("key", argument="key_hex")),
        back=lambda params: f"keys?{urlencode({'group': params['group']})}",
    ),
    Action(
        name="replay",
        title="Replay",
        deed=DEEDS["dlq replay"],
        fields=(
            Field("topic"),
            typed(
                "at", "these letters", "0@17, 0@18; empty: all that match", optional=True, argument="places", many=True
            ),
            typed("reason", "reason contains", optional=True),
            typed("exception", "exception contains", optional=True),
            typed("limit", "at most", optional=True),
            typed("rate", "letters a second at most", "empty: as fast as it goes", optional=True),
        ),
        limit_s=REPLAY_LIMIT_S,
        long=True,
        back=lambda params: f"letters?{urlencode({'topic': params['topic']})}",
    ),
    Action(
        name="drain",
        title="Drain",
        deed=DEEDS["drain"],
        fields=(Field("worker"),),
        long=True,
        back=lambda _: "fleet",
    ),
    Action(
        name="resize",
        title="Scale",
        deed=DEEDS["resize"],
        fields=(Field("worker"), typed("count", "workers")),
        back=lambda _: "fleet",
    ),
    _intervention("release", "Release"),
    _intervention("now", "Deliver now"),
    _intervention("reject", "Reject"),
    _intervention("dead_letter", "Make a dead letter"),
    Action(
        name="end_delays",
        title="Let all come",
        deed=DEEDS["groups end-delays"],
        fields=(GROUP, typed("rate", "records a second")),
        limit_s=REPLAY_LIMIT_S,
        back=lambda params: f"delayed?{urlencode({'group': params['group']})}",
    ),
)
ACTIONS: Final[Mapping[str, Action]] = {one.name: one for one in _ALL}
"""Actions by name."""
