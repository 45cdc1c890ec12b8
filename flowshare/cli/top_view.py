"""The screen of `flowshare top`: turns known facts of groups into terminal lines, and handles keys. Pure.

A line is its text, not longer than the terminal is wide, and a style: `head`, `row`, `selected`, `why`, `bad`, `dim`.
Everything fits into 80 columns; `SPARE` lists the columns that a narrower terminal leaves out. Each group has a row,
and a second line if it has a reason to stand still.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from rich.cells import cell_len, set_cell_size

from flowshare.agents.handler.texts import age
from flowshare.ops.figures import GroupFigures, PartitionFigures
from flowshare.printable import printable

WIDTH_MIN: Final = 20
HEIGHT_MIN: Final = 4
NAME_MIN: Final = 16
GROUPS_MAX: Final = 10_000
"""Groups that the screen keeps, or a look in a pipe asks for. Names are known of all groups: they are counted."""
OLD_S: Final = 15.0
"""Figures that are older say so."""


class Line(NamedTuple):
    """A line of the screen."""

    text: str
    style: str = "row"


class Act(NamedTuple):
    """The action of a key: `quit`, `open` a group (its details are wanted), `pause` or `resume` one."""

    name: str
    group: str = ""


def word(group: GroupFigures) -> str:
    """A group's state in one word."""
    if group.paused:
        return "paused"
    return group.state.lower() if group.breaker.state == "closed" else "broken"


def short(value: float | None) -> str:
    """A count in at most five characters: 12345, 123k, 12.3M; `-` for None."""
    if value is None:
        return "-"
    if value < 0:
        return f"-{short(-value)}"
    for unit in ("", "k", "M", "G"):
        if value < (100_000 if not unit else 1_000):
            return f"{value:.0f}{unit}" if not unit or value >= 100 else f"{value:.1f}{unit}"
        value /= 1_000
    return ">1T"


def per_s(rate: float | None) -> str:
    """Records a second in at most five characters."""
    return "-" if rate is None else f"{rate:.1f}" if 0 < rate < 10 else short(rate)


def short_age(seconds: float | None) -> str:
    """A duration in at most six characters: the first two parts of it, without spaces."""
    return f"{math.floor(seconds)}s" if seconds is not None and 0 <= seconds < 60 else age(seconds).replace(" ", "")


class _Column(NamedTuple):
    heading: str
    width: int
    text: Callable[[GroupFigures], str]


_COLUMNS: Final = {
    "state": _Column("STATE", 7, lambda row: word(row) or "-"),
    "backlog": _Column("BACKLOG", 7, lambda row: short(row.total.backlog)),
    "in_flight": _Column("FLIGHT", 6, lambda row: short(row.total.in_flight)),
    "delayed": _Column("DELAYED", 7, lambda row: short(row.total.delayed)),
    "oldest": _Column("OLDEST", 6, lambda row: short_age(row.total.oldest_age_s)),
    "arriving": _Column("IN/S", 5, lambda row: per_s(row.total.arrival_rate)),
    "finished": _Column("OUT/S", 5, lambda row: per_s(row.total.rate)),
    "redelivered": _Column("AGAIN", 5, lambda row: per_s(row.total.redelivery_rate)),
}
SPARE: Final = ("redelivered", "delayed", "arriving", "state", "in_flight", "oldest", "finished", "backlog")
"""Columns that a terminal of less than 80 does without, the first to go first."""

SORTS: Final[Mapping[str, Callable[[GroupFigures], tuple[Any, ...]]]] = {
    "trouble": lambda row: (row.stall is None, -(row.total.oldest_age_s or 0.0), -(row.total.backlog or 0)),
    "backlog": lambda row: (-(row.total.backlog or 0),),
    "oldest": lambda row: (-(row.total.oldest_age_s or 0.0),),
    "out/s": lambda row: (-(row.total.rate or 0.0),),
    "again/s": lambda row: (-(row.total.redelivery_rate or 0.0),),
    "name": lambda _: (),
}
"""The sort orders of groups; equal groups are sorted by name."""
HELP: Final = "q quit  j/k choose  enter members  p pause/resume  s sort"
HELP_DETAIL: Final = "q quit  j/k scroll  enter/esc back  p pause/resume"


@dataclass(slots=True)
class Screen:
    """The state of the screen, and the effect of keys on it.

    counted: the number of existing groups, more than `rows` when there are too many. members: of a group, by its name,
    with member, host, client, partitions. trouble: the reason why nothing is known any more.
    """

    where: str = ""
    rows: dict[str, GroupFigures] = field(default_factory=dict[str, GroupFigures])
    counted: int = 0
    sort: str = "trouble"
    chosen: str | None = None
    opened: str | None = None
    members: tuple[str, Sequence[Mapping[str, Any]]] | None = None
    asking: Act | None = None
    note: str = ""
    trouble: str = ""
    looked_s: float | None = None
    _first: int = 0

    # --- keys -----------------------------------------------------------------------------------------------------

    def press(self, key: str) -> Act | None:
        """Handle a key; return the act that is left to be carried out, if any."""
        self.note = ""
        if self.asking is not None:
            asked, self.asking = self.asking, None
            return asked if key in ("y", "Y") else None
        if key in ("q", "Q", "ctrl-c", "ctrl-d"):
            return Act("quit")
        if key in _MOVES:
            self._move(_MOVES[key])
        elif key == "s" and self.opened is None:
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "p":
            self._ask_to_pause()
        elif key in ("enter", "esc", "backspace", "left") and self.opened is not None:
            self.opened, self.members, self._first = None, None, 0
        elif key in ("enter", "right") and self.chosen in self.rows:
            self.opened, self._first = self.chosen, 0
            return Act("open", self.opened or "")
        return None

    def _ask_to_pause(self) -> None:
        row = self.rows.get(self.opened or self.chosen or "")
        if row is None:
            return
        if row.kind != "share":
            self.note = f"{row.name} is a cooperative group, which cannot be paused from outside"
            return
        self.asking = Act("resume" if row.paused else "pause", row.name)

    def _move(self, by: int) -> None:
        if self.opened is not None:
            self._first = max(0, self._first + by)
            return
        order = self.order()
        if order:
            names = [row.name for row in order]
            at = names.index(self.chosen) if self.chosen in self.rows else -1
            self.chosen = names[min(max(0, at + by), len(names) - 1)]

    # --- what is known ----------------------------------------------------------------------------------------------

    def update(self, groups: Mapping[str, GroupFigures], now_s: float) -> None:
        """Take in the groups of a look."""
        self.counted, self.trouble, self.looked_s = len(groups), "", now_s
        self.rows = dict(islice(groups.items(), GROUPS_MAX))
        if self.chosen not in self.rows:
            self.chosen = None
        if self.opened not in self.rows:
            self.opened = self.members = None

    def order(self) -> list[GroupFigures]:
        """The groups as they are sorted."""
        key = SORTS[self.sort]
        return sorted(self.rows.values(), key=lambda row: (*key(row), row.name))

    def shown(self, height: int) -> list[str]:
        """Groups whose figures are to be seen next, about: those on the screen."""
        if self.opened is not None:
            return [self.opened]
        first = self._first
        return [row.name for row in self.order()[first : first + max(1, height)]]

    # --- lines ------------------------------------------------------------------------------------------------------

    def lines(self, width: int, height: int, now_s: float) -> list[Line]:
        """The screen, `height` lines of at most `width` characters."""
        width, height = max(WIDTH_MIN, width), max(HEIGHT_MIN, height)
        head = self._head(now_s)
        foot = [Line(self._foot(), "bad" if self.asking else "dim")]
        room = height - len(head) - len(foot)
        body = self._groups(width, room, now_s) if self.opened is None else self._opened(room)
        body = [*body[:room], *[Line("")] * (room - len(body))]
        return [Line(_cut(line.text, width), line.style) for line in (*head, *body, *foot)]

    def _head(self, now_s: float) -> list[Line]:
        rows = self.rows.values()
        stalled = sum(row.stall is not None for row in rows)
        backlog = sum(row.total.backlog or 0 for row in rows)
        more = f" ({self.counted - len(self.rows)} more are not shown)" if self.counted > len(self.rows) else ""
        text = f"flowshare top: {self.counted} groups{more}, {stalled} with trouble, backlog {backlog}, by {self.sort}"
        lines = [Line(f"{text}  {self.where}", "head")]
        if self.trouble:
            since = "" if self.looked_s is None else f"; what is below is {age(now_s - self.looked_s)} old"
            lines.append(Line(f"{self.trouble}{since}", "bad"))
        elif self.note:
            lines.append(Line(self.note, "bad"))
        return lines

    def _foot(self) -> str:
        if self.asking is not None:
            what = "hand out nothing more of" if self.asking.name == "pause" else "go on with"
            return f"{what} group {self.asking.group}? y/n"
        return HELP if self.opened is None else HELP_DETAIL

    def _groups(self, width: int, room: int, now_s: float) -> list[Line]:
        columns = _fitting(width)
        name_width = width - sum(column.width + 1 for column in columns)
        headings = " ".join(column.heading.rjust(column.width) for column in columns)
        lines = [Line(f"{'GROUP'.ljust(name_width)} {headings}", "head")]
        order = self.order()
        at = next((at for at, row in enumerate(order) if row.name == self.chosen), 0)
        self._first = _first_that_shows(self._first, at, [1 + (row.stall is not None) for row in order], room - 1)
        for row in order[self._first :]:
            block = self._group(row, columns, name_width, now_s)
            if len(lines) + len(block) > room:
                break
            lines += block
        if not order:
            empty = "asking …" if self.looked_s is None else "there are no share or cooperative groups"
            lines.append(Line(empty, "dim"))
        return lines

    def _group(self, row: GroupFigures, columns: Sequence[_Column], name_width: int, now_s: float) -> list[Line]:
        chosen = row.name == self.chosen
        old = row.seen_s is None or now_s - row.seen_s > OLD_S
        name = f"{'>' if chosen else ' '}{printable(row.name)}"
        cells = " ".join(column.text(row).rjust(column.width) for column in columns)
        lines = [
            Line(f"{_fill(name, name_width)} {cells}", "selected" if chosen else "dim" if old else "row"),
        ]
        if row.stall is not None:
            when = f" ({age(now_s - row.seen_s)} ago)" if old and row.seen_s is not None else ""
            lines.append(Line(f"   {row.stall}{when}", "why"))
        return lines

    def _opened(self, room: int) -> list[Line]:
        row = self.rows.get(self.opened or "", GroupFigures(name=self.opened or ""))
        lines = [Line(f"group {row.name}: {word(row) or '-'}, backlog {short(row.total.backlog)}", "head")]
        if row.stall is not None:
            lines.append(Line(f"   {row.stall}", "why"))
        if self.members is None or self.members[0] != self.opened:
            return [*lines, Line("asking …", "dim")]
        rest = [*_partition_lines(row.partitions), *_member_lines(self.members[1])]
        space = room - len(lines)
        self._first = max(0, min(self._first, len(rest) - space))
        return [*lines, *rest[self._first : self._first + space]]


_MOVES: Final = {"j": 1, "down": 1, "k": -1, "up": -1, "pgdn": 15, "pgup": -15, "home": -GROUPS_MAX, "end": GROUPS_MAX}


def _fitting(width: int) -> list[_Column]:
    """The columns that leave the name enough room."""
    kept = dict(_COLUMNS)
    for name in SPARE:
        if width - sum(column.width + 1 for column in kept.values()) >= NAME_MIN:
            break
        del kept[name]
    return list(kept.values())


def _first_that_shows(first: int, at: int, heights: Sequence[int], room: int) -> int:
    """The first block to show, so that block `at` is seen, moved as little as may be from `first`."""
    least, used = at, sum(heights[at : at + 1])
    while least > 0 and used + heights[least - 1] <= room:
        least -= 1
        used += heights[least]
    return max(min(first, at), least)


def _partition_lines(partitions: Sequence[PartitionFigures]) -> list[Line]:
    heading = f"{'PARTITION'.ljust(30)} {'START':>10} {'BACKLOG':>7} {'FLIGHT':>6} {'DELAYED':>7} {'BLOCKED':>7} OLDEST"
    lines = [Line(heading, "head")]
    for one in partitions:
        name = _fill(printable(f"{one.topic}-{one.partition}"), 30)
        counts = " ".join(
            short(count).rjust(size)
            for count, size in ((one.backlog, 7), (one.in_flight, 6), (one.delayed, 7), (one.blocked, 7))
        )
        start = "-" if one.start_offset is None else str(one.start_offset)
        lines.append(Line(f"{name} {start:>10} {counts} {short_age(one.oldest_age_s):>6}"))
    return lines if partitions else [*lines, Line("no position yet", "dim")]


def _member_lines(members: Sequence[Mapping[str, Any]]) -> list[Line]:
    lines = [Line(""), Line(f"{'MEMBER'.ljust(40)} {'HOST'.ljust(20)} {'PARTITIONS':>10} CLIENT", "head")]
    for one in members:
        name, host = _fill(printable(one["member"]), 40), _fill(printable(one["host"]), 20)
        lines.append(Line(f"{name} {host} {one['partitions']:>10} {printable(one['client'])}"))
    return lines if members else [*lines, Line("no members", "dim")]


def _fill(text: str, width: int) -> str:
    """Exactly so many cells; what is longer ends in `…`."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(f"{set_cell_size(text, max(0, width - 1)).rstrip()}…", width)


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"
