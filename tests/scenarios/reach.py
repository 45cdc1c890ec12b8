"""Limits of the scenarios, with reasons: rows that no socket reaches, scenarios that a real Kafka cannot run.

`NOT_ON_TCP` has ids of the catalogue (their scenarios run on the core alone). `NOT_ON_KAFKA` has names of scenarios
(`K15.2` is the second variant of K15); so has `NOT_ON_FLEET`, for a fleet of workers on a real Kafka. Tests compare
these lists with the catalogue and the scenarios.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Final

from tests.scenarios.data import order, order_chains, order_log, order_settings, order_settling, settling

_NARROW = "The core is given a part of the log, or a gap in it, that a server would read on from."
_EPOCH = "2,147,483,647 requests would have to come before it."
_ASSIGNOR = "The assignor alone is walked; a group of that size on a server shows nothing more."
_TIMERS = "Deadlines of single locks have no form in any answer."
_STATE = "Stored state, driven step by step; the APIs 83 to 87 at the socket: tests/server/edge/test_share_admin.py."
_COMBINER = "How stored runs are combined is seen in storage only."

NOT_ON_TCP: Final[Mapping[str, str]] = {
    "S23": _EPOCH,
    "A10": _NARROW,
    "A33": _NARROW,
    "A34": _NARROW,
    "D13": _NARROW,
    "L16": _TIMERS,
    "X57": "What is picked behind a settle that is being written leaves when that is: X55 shows it.",
    "G18": _ASSIGNOR,
    "G19": _ASSIGNOR,
    "G21": "Members are never told of a partition before its state is there, so a socket shows no half of it.",
    **dict.fromkeys([f"P{number:02}" for number in (1, 2, 3, 4, 7, 23)], _STATE),
    **dict.fromkeys([f"P{number}" for number in range(11, 21)], _COMBINER),
}

_FAULT = "A client cannot make the broker's writes fail or wait."
_CRASH = "A client cannot end the leader; the broker is shared by the whole run."
_SEED = "Stored state cannot be seeded by a client."
_BROKER = "It needs a setting of the broker itself; the broker is shared by the whole run."
_HOLE = "Holes in a log come from compaction, which runs when the broker likes."
_MARKERS = "A log without the markers of its aborted transactions does not exist on a broker."
_STORED = "What is stored, and how, cannot be seen by a client."
_LETTERS = "Dead-letter topics come with Kafka 4.4 (KIP-1191)."
_ORDER = "Kafka's brokers hand any record to anyone: they know no order by key."
_SETTLES = "Kafka's brokers settle no records with outputs."
_SMALL = "Kafka takes no share.partition.max.record.locks below 100; the variant with 100 runs there."


def _on_server(*sections: ModuleType) -> Iterator[str]:
    """Names of what runs on a server, in these sections."""
    found: dict[str, int] = {}
    for section in sections:
        for scenario in section.SCENARIOS:
            found[scenario.id] = number = found.get(scenario.id, 0) + 1
            if "server" in scenario.subjects:
                yield scenario.id if number == 1 else f"{scenario.id}.{number}"


NOT_ON_KAFKA: Final[Mapping[str, str]] = {
    "S10": _BROKER,
    "S15": _BROKER,
    "S16": _BROKER,
    "A12": _HOLE,
    **dict.fromkeys(["A17", "A18", "A19", "A20", "A21.2", "A38"], _SMALL),
    "A22.2": "Which of several parked fetches is served first is not fixed there.",
    **dict.fromkeys(["A26.2", "A27.2", "A28", "A29", "A30.2", "A31.2", "A32.2", "D12"], _SEED),
    "A35": _HOLE,
    **dict.fromkeys(["K20", "K21", "K22", "K23", "L05", "E12", "E12.2", "E12.3"], _FAULT),
    **dict.fromkeys(["P05", "P06", "P08", "P09"], _STORED),
    **dict.fromkeys(["L12", "G13", "P21", "P22", "E06"], _CRASH),
    "O15.2": _MARKERS,
    "O17": _MARKERS,
    "O18.2": "2,000 transactions take minutes there and show what O13 shows with ten.",
    "G12": _BROKER,
    "G22": "It is about the milliseconds of one second; the groups there assign at once, to be quick.",
    "E01": "Who of the four has work before all of it is done depends on when Kafka's heartbeats give them partitions.",
    "E05": "Its figures are those of a clock that counts the work alone.",
    **dict.fromkeys(["E08", "E09", "E10", "E11", "E11.2"], _LETTERS),
    **dict.fromkeys(_on_server(order, order_settling, order_chains, order_log, order_settings), _ORDER),
    **dict.fromkeys(_on_server(settling), _SETTLES),
}

_TRANSACTIONS = "2,000 transactions take minutes on a real Kafka and show what O13 shows with ten."

_RETRIED = (
    "The write that is made to fail may be the one that notes a lane, which is made again; tests/fleet/test_outputs.py "
    "has settles that fail."
)
NOT_ON_FLEET: Final[Mapping[str, str]] = {
    "X28.2": "Outputs of a fleet lie in transactions: who reads what is not committed sees them before.",
    "X06": "The marker of a transaction takes an offset, and comes with the records or behind them.",
    "X26": "A broker takes one batch at a time: that many for one partition take longer than it is given.",
    **dict.fromkeys(["X45", "X46", "X47"], "Processes whose writes can be held cannot be killed."),
    "X65": "The settle must begin in the last 0.6 s of a lock, and a request to a leader may take as long.",
    **dict.fromkeys(["X34", "X35", "X36", "X37", "X39.2", "X42", "X51", "X56"], _RETRIED),
    "A12": _HOLE,
    "A35": _HOLE,
    **dict.fromkeys(["R14", "R15", "R16"], _HOLE),
    "O15.2": _MARKERS,
    "O17": _MARKERS,
    **dict.fromkeys(["P05", "P06", "P08", "P09"], _STORED),
    "O18.2": _TRANSACTIONS,
    "G22": "It is about the milliseconds of one second, and time is real there.",
    "E05": "Its figures are those of a clock that counts the work alone.",
}
