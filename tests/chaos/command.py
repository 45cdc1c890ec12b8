"""The command line of runs with faults: options that all have, and the end of the process."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


def parser_of(about: str | None, *, records: int, runs: bool = True) -> argparse.ArgumentParser:
    """Return a parser with options that all runs share. records: default number of records of each run. runs: whether
    there is an option for several."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    if runs:
        parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--records", type=int, default=records)
    parser.add_argument("--keep", type=Path, help="Where logs and journals stay.")
    return parser


def finish(options: argparse.Namespace, runs: Callable[[Path], int]) -> NoReturn:
    """All runs in a folder, which say how many violations there were; exit code 1 if there was any."""
    with tempfile.TemporaryDirectory(prefix="flowshare-chaos-") as folder:
        violations = runs(options.keep or Path(folder))
    print(f"seed {options.seed}  violations {violations}")
    sys.exit(violations != 0)
