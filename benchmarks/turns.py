"""One benchmark in two trees in turns: what a change costs or brings, on a machine that is never twice the same.

    python benchmarks/turns.py OTHER SCRIPT [--rounds 3] [arguments of the script …]
    python benchmarks/turns.py ../before agent.py --rounds 2 --runs 1

OTHER is a tree of an earlier commit in which `make setup` was run (a git worktree, say); SCRIPT one of the benchmarks,
which both trees have. Whole runs alternate, each tree begins every other round; printed is each figure's median there,
here, and here divided by there. Figures with one label in one run are told apart by their place.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
LINE = re.compile(r"(\S.{0,56}?|  .{0,56}?) +([\d,]+\.\d\d)(?: (\S+))?(?: .*)?")
LIMIT_S = 3600


def figures(output: str) -> dict[str, float]:
    """Return the figures that `common.info` and `common.verdict` printed, by label, unit and place.

    >>> figures("no-op agent        300,000.50 records/s  ≥ 1.00 ok")
    {'no-op agent, records/s': 300000.5}
    """
    found: dict[str, float] = {}
    seen: Counter[str] = Counter()
    for line in output.splitlines():
        match = LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        label = ", ".join(part for part in (match[1].rstrip(), match[3]) if part)
        seen[label] += 1
        name = label if seen[label] == 1 else f"{label} ({seen[label]})"
        found[name] = float(match[2].replace(",", ""))
    return found


def run(tree: Path, script: str, arguments: list[str]) -> dict[str, float]:
    """The figures of one run in a tree. A target that is missed is no failure here."""
    command = [str(tree / ".venv/bin/python"), str(tree / "benchmarks" / script), *arguments]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S)
    found = figures(done.stdout)
    if done.returncode or not found:
        raise SystemExit(
            f"{script} failed in {tree}, or printed no figures (exit code {done.returncode}): run `make setup` there. "
            "core.py, server.py and log.py print theirs in another form: run those by hand"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("script")
    parser.add_argument("--rounds", type=int, default=3)
    options, arguments = parser.parse_known_args()
    trees = {"there": options.other.resolve(), "here": HERE}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(options.rounds):
        for name, tree in sorted(trees.items(), reverse=number % 2 == 0):
            for label, value in run(tree, options.script, arguments).items():
                found[label][name].append(value)
    print(f"{'':<58} {'there':>14} {'here':>14} {'here/there':>10}")
    for label, each in found.items():
        there, here = (statistics.median(each[name]) if each[name] else float("nan") for name in trees)
        ratio = here / there if there else float("nan")
        print(f"{label:<58} {there:>14,.2f} {here:>14,.2f} {ratio:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
