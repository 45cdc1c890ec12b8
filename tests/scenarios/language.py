"""The words of a scenario: steps in lines of text, what a step gave, what was expected of it, and how to flip that.

A step is one line, `[name&] operation arguments key=value … [=> expectation]`. A step without `=>` must give no error.
`name&` starts a step in the background; `await name` looks at what it gave (`pending` while it goes on).
An expectation is compared with the step's outcome word for word: the text before the first `key=value` with the
outcome's main text, each `key=value` with that field. `a or b` accepts either. Ranges are written as in the catalogue:
`[0-9]c1` is an acquired range with its delivery count, `nothing` is an empty answer, `error X` is an error code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a step: one main text and named details."""

    main: str = "ok"
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """True if any part of the answer is an error or a refused acknowledgement."""
        return any(word == "error" or re.fullmatch(r"(\S+:)?[A-Z]+(_[A-Z]+)+", word) for word in self.main.split())

    def __str__(self) -> str:
        """The outcome as an expectation would be written."""
        return " ".join([self.main, *(f"{name}={value}" for name, value in self.fields.items())])


@dataclass(frozen=True, slots=True)
class Expected:
    """One way in which a step's outcome is right. `main` None: any outcome that is no error."""

    main: str | None
    fields: tuple[tuple[str, str], ...]

    def matches(self, outcome: Outcome) -> bool:
        """True if the outcome is as expected."""
        main_right = not outcome.failed if self.main is None else self.main == outcome.main
        return main_right and all(outcome.fields.get(name) == value for name, value in self.fields)

    def __str__(self) -> str:
        """As written."""
        return " ".join([*([self.main] if self.main else []), *(f"{name}={value}" for name, value in self.fields)])


@dataclass(frozen=True, slots=True)
class Step:
    """One line: what to do and, maybe, what must come of it."""

    text: str
    operation: str
    words: tuple[str, ...]
    options: Mapping[str, str]
    expected: tuple[Expected, ...] = ()
    background: str | None = None

    def check(self, outcome: Outcome) -> str | None:
        """None when the outcome is right, else what differs."""
        if not self.expected:
            return f"{self.text}: unexpected {outcome}" if outcome.failed else None
        if any(expected.matches(outcome) for expected in self.expected):
            return None
        return f"{self.text}: got {outcome}, expected {' or '.join(map(str, self.expected))}"


class BadStep(Exception):
    """A line of a scenario cannot be read, or a subject does not know the operation."""


_OPTION = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)=(.*)", re.DOTALL)


def parse_expected(text: str) -> tuple[Expected, ...]:
    """The alternatives of the text after `=>`."""
    alternatives = []
    for alternative in text.split(" or "):
        main: list[str] = []
        fields: list[tuple[str, str]] = []
        for word in alternative.split():
            match = _OPTION.fullmatch(word)
            if match:
                fields.append((match[1], match[2]))
            else:
                main.append(word)
        alternatives.append(Expected(" ".join(main) or None, tuple(fields)))
    return tuple(alternatives)


def parse_step(line: str) -> Step:
    """One step. Raises: BadStep."""
    command, arrow, wanted = line.partition("=>")
    words = shlex.split(command)
    background = None
    if words and words[0].endswith("&"):
        background = words.pop(0)[:-1]
    if not words or (arrow and not wanted.strip()):
        raise BadStep(f"cannot read step: {line!r}")
    operation, *rest = words
    options = {match[1]: match[2] for word in rest if (match := _OPTION.fullmatch(word))}
    plain = tuple(word for word in rest if not _OPTION.fullmatch(word))
    expected = parse_expected(wanted.strip()) if arrow else ()
    return Step(line.strip(), operation, plain, options, expected, background)


def parse_steps(text: str) -> tuple[Step, ...]:
    """All steps of a block of lines; empty lines and `#` comments are left out."""
    lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
    return tuple(parse_step(line) for line in lines if line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario, or one variant of it for some subjects: steps that set up, act and look.

    `on` names the subjects that run it: what runs on `server` runs over TCP too and, unless `reach.py` says why not,
    on a real Kafka, with the changes of `differences.py`; `kafka` alone is for what only reads otherwise there.
    `note` says where and why flowshare differs from the catalogue's words.
    """

    id: str
    on: str = "core server"
    given: str = ""
    when: str = ""
    then: str = ""
    note: str = ""
    config: str = ""
    """Server settings (Kafka's broker names, shortened as in `settings.py`) that must stand before the start."""
    slow: bool = False
    """Takes longer than a quarter of a second."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """Names of the subjects."""
        return tuple(self.on.split())

    def also(self, **otherwise: str | bool) -> tuple[Scenario, Scenario]:
        """This scenario and its next variant, which is the same but for what is said here."""
        return self, replace(self, **otherwise)

    def steps(self) -> tuple[Step, ...]:
        """Given, when and then as one sequence."""
        return parse_steps("\n".join((self.given, self.when, self.then)))


@dataclass(frozen=True, slots=True)
class Left:
    """A scenario that nothing here can show yet, with the reason."""

    id: str
    reason: str


def flipped_values(value: str) -> Iterator[str]:
    """Wrong values near a right one: another number, another delivery count, a range fewer, one more, another word."""
    number = re.search(r"\d+", value)
    if number:
        yield value[: number.start()] + str(int(number[0]) + 1) + value[number.end() :]
        last = list(re.finditer(r"\d+", value))[-1]
        if last.start() != number.start():
            yield value[: last.start()] + str(int(last[0]) + 1) + value[last.end() :]
    words = value.split()
    if len(words) > 1:
        yield " ".join(words[:-1])
    if "[" in value:
        yield f"{value} [900-901]c1"
        yield "nothing"
    elif value == "nothing":
        yield "[0-0]c1"
    elif not number:
        yield "NONE" if value != "NONE" else "INVALID_REQUEST"


def flips(step: Step) -> Iterator[Step]:
    """Every version of the step with one part of its expectation made wrong."""
    for parts in step.expected:
        yield from _flips_of(step, parts)


def _flips_of(step: Step, parts: Expected) -> Iterator[Step]:
    """The step with nothing accepted but one of its alternatives, made wrong."""
    accepted = {alternative.main for alternative in step.expected}
    if parts.main is not None:
        for value in flipped_values(parts.main):
            if value not in accepted:
                yield _flipped(step, Expected(value, parts.fields))
    for index, (name, right) in enumerate(parts.fields):
        for value in flipped_values(right):
            fields = (*parts.fields[:index], (name, value), *parts.fields[index + 1 :])
            yield _flipped(step, Expected(parts.main, fields))


def _flipped(step: Step, wrong: Expected) -> Step:
    return replace(step, expected=(wrong,), text=f"{step.text}   [flipped to: {wrong}]")
