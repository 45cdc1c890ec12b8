"""Which scenarios of cooperative groups the core shows, which are left and why, and that the runner can go red.

Run `python -m tests.cooperative.report [--quick]`: every expectation is made wrong in every way that `language.flips`
knows, and the run must fail at exactly that step. Exits with 1 if a scenario fails or a flip is not noticed.
"""

from __future__ import annotations

import sys

from tests.cooperative.scenarios import IDS, LEFT, SCENARIOS
from tests.cooperative.subject import CooperativeSubject
from tests.scenarios import runner


def main() -> int:
    """Print the report; the exit code."""
    failed = missed = flipped = 0
    for scenario in SCENARIOS:
        failure = runner.attempt(scenario, CooperativeSubject)
        failed += failure is not None
        print(f"{'ok  ' if failure is None else 'FAIL'} {scenario.id:3}{'' if failure is None else failure.message}")
        if scenario.note:
            print(f"         {scenario.note}")
        if "--quick" not in sys.argv:
            for flip in runner.flip_all(scenario, "core", CooperativeSubject):
                flipped += 1
                if not flip.caught:
                    missed += 1
                    print(f"NOT NOTICED {scenario.id}: {flip.text}")
    for left in LEFT:
        print(f"left {left.id:3} {left.reason}")
    print(
        f"\n{len(IDS)} scenarios: {len(SCENARIOS)} shown on the core, {len(LEFT)} left; {failed} failed; "
        f"{flipped} expectations flipped, {missed} not noticed"
    )
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
