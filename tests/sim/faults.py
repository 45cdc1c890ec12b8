"""Rates of faults, which the seed draws once for a world: some worlds have none of a kind, others many."""

from __future__ import annotations

import random
from collections.abc import Sequence


class Faults:
    """Faults by name, each with its rate between 0 and 1, which is drawn from those given.

    `faults("dies")` says whether that fault happens now; `faults["dies"]` is its rate.
    """

    def __init__(self, dice: random.Random, **rates: Sequence[float]) -> None:
        self._dice = dice
        self.rates = {name: dice.choice(some) for name, some in rates.items()}

    def __getitem__(self, name: str) -> float:
        return self.rates[name]

    def __call__(self, name: str) -> bool:
        return self._dice.random() < self.rates[name]

    def end(self, *names: str) -> None:
        """Have the faults of these names, all of them without any, happen no more."""
        self.rates.update(dict.fromkeys(names or self.rates, 0.0))
