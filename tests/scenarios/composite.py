"""Steps made of other steps: they run on any subject that knows `fetch` and `ack`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from flowshare.share.types import AcquiredRange
from tests.scenarios.language import Outcome, Step, parse_step

Perform = Callable[[Step], Awaitable[Outcome]]
TURNS_MAX = 20_000


def ranges(text: str) -> list[AcquiredRange]:
    """Acquired ranges out of an outcome's text."""
    return [AcquiredRange(*map(int, found)) for found in re.findall(r"\[(\d+)-(\d+)\]c(\d+)", text)]


def runs_of(numbers: list[int]) -> str:
    """`100,100,50` as `100*2,50`."""
    shown: list[list[int]] = []
    for number in numbers:
        if shown and shown[-1][0] == number:
            shown[-1][1] += 1
        else:
            shown.append([number, 1])
    return ",".join(f"{number}*{times}" if times > 1 else str(number) for number, times in shown) or "none"


async def exhaust(perform: Perform, step: Step) -> Outcome:
    """`exhaust M1 max=500 [times=10]`: fetch and release all of it, over and over, until nothing comes."""
    options = " ".join(f"{name}={value}" for name, value in step.options.items() if name != "times")
    sizes: list[int] = []
    counts: dict[int, int] = {}
    ended: dict[int, int] = {}
    for turn in range(int(step.options.get("times", TURNS_MAX))):
        taken = ranges((await perform(parse_step(f"fetch {step.words[0]} {options}"))).main)
        if not taken:
            break
        sizes.append(sum(last - first + 1 for first, last, _ in taken))
        for first, last, count in taken:
            for offset in range(first, last + 1):
                counts[offset], ended[offset] = max(count, counts.get(offset, 0)), turn
        back = " ".join(f"{first}-{last}:release" for first, last, _ in taken)
        answer = await perform(parse_step(f"ack {step.words[0]} {back}"))
        if answer.main != "NONE":
            return answer
    in_order = all(ended[low] <= ended[high] for low, high in zip(sorted(ended), sorted(ended)[1:], strict=False))
    return Outcome(
        "ok",
        {
            "sizes": runs_of(sizes),
            "ends_in_order": "yes" if in_order else "no",
            "deliveries": f"{min(counts.values())}-{max(counts.values())}",
            "offsets": str(len(counts)),
        },
    )


async def collect(perform: Perform, step: Step) -> Outcome:
    """`collect M1`: fetch until nothing comes; all of it as one fetch would show it, in the order of offsets.

    For what becomes available bit by bit, as each of several state writes is confirmed.
    """
    taken: list[AcquiredRange] = []
    for _ in range(TURNS_MAX):
        more = ranges((await perform(parse_step(f"fetch {step.words[0]}"))).main)
        if not more:
            break
        taken += more
    return Outcome(" ".join(f"[{first}-{last}]c{count}" for first, last, count in sorted(taken)) or "nothing")


async def singly(perform: Perform, step: Step) -> Outcome:
    """`singly M1 0-498:accept`: an acknowledgement, and so a write of the state, for each offset."""
    span, _, kind = step.words[1].partition(":")
    first, last = map(int, span.split("-"))
    for offset in range(first, last + 1):
        answer = await perform(parse_step(f"ack {step.words[0]} {offset}:{kind}"))
        if answer.main != "NONE":
            return answer
    return Outcome()


COMPOSITES = {"exhaust": exhaust, "collect": collect, "singly": singly}
