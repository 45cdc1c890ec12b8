"""Seeds of worlds: which ones a run plays, and how a world that fails names its own.

`SEED=1000 SEEDS=5000 pytest …` plays others, of every world that the command selects; so does `make test SEED=1000`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")
FIRST: Final = "SEED"
COUNT: Final = "SEEDS"


def seeds(count: int, first: int = 0) -> range:
    """Return `count` seeds from `first` on, or those that the environment names."""
    begin = int(os.environ.get(FIRST, first))
    return range(begin, begin + int(os.environ.get(COUNT, count)))


def drawn() -> int:
    """Return a seed from the test's own random source, or the one that the environment names; print the seed."""
    seed = int(os.environ.get(FIRST) or random.randrange(1 << 32))
    print(f"{FIRST}={seed} {COUNT}=1")
    return seed


@contextmanager
def named(seed: int, *more: object) -> Iterator[None]:
    """Add the seed, and `more` of what tells the world apart, to whatever fails inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(" ".join([f"the world of {FIRST}={seed} {COUNT}=1", *map(str, more)]))
        raise


def play(worlds: Iterable[int], live: Callable[[int], T], *more: object) -> list[T]:
    """Run `live(seed)` for each seed, and return the results; see `named`."""
    found: list[T] = []
    for seed in worlds:
        with named(seed, *more):
            found.append(live(seed))
    return found
