"""Known bugs that are planted in a copy of the sources, one at a time; the tests there must catch each.

A mutant that lives is a hole in the tests. One is added for every bug found in a core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
UNCOMPILED = shutil.ignore_patterns("__pycache__")
LIMIT_S = 300
"""A mutant that makes something run for ever is caught, too."""
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not slow and not real")
SCENARIOS = """
import logging
from tests.scenarios import runner
from tests.scenarios.catalogue import cases
logging.disable(logging.CRITICAL)
factories = runner.subject_factories()
chosen = [
    case for case in cases()
    if case[1].id[0] in {sections!r} and ({slow} or not case[1].slow) and case[2] in ("core", "server")
]
for name, scenario, subject in sorted(chosen, key=lambda case: case[2]):
    failure = runner.attempt(scenario, factories[subject])
    if failure is not None:
        raise SystemExit(f"{{name}}: {{failure.message}}")
"""


@dataclass(frozen=True)
class Mutant:
    """One bug: in `module` every `old` becomes `new`."""

    name: str
    module: str
    old: str
    new: str


Kinds = Sequence[tuple[str, Sequence[str]]]


def by(kinds: Kinds, environment: Mapping[str, str] = MappingProxyType({})) -> Callable[[Path], str | None]:
    """The first kind of test that is red, or None. environment: what the tests have beside."""

    def killed_by(folder: Path) -> str | None:
        for kind, command in kinds:
            try:
                done = subprocess.run(
                    [sys.executable, *command],
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": str(folder), **environment},
                    capture_output=True,
                    check=False,
                    timeout=LIMIT_S,
                )
            except subprocess.TimeoutExpired:
                return f"by the {kind}, which never end"
            if done.returncode == 1:
                return f"by the {kind}"
            if done.returncode:
                told = f"{done.stdout.decode()[-2000:]}{done.stderr.decode()[-2000:]}"
                raise SystemExit(f"the tests did not run:\n{told}")
        return None

    return killed_by


@dataclass(frozen=True)
class Hunt:
    """All mutants of one package, and who must kill them."""

    mutants: Sequence[Mutant]
    package: str
    tests: Sequence[str]
    """Folders and files of `tests` that the killer needs; empty: all."""
    killer: Callable[[Path], str | None]
    """How the tests in a folder kill the mutant there, or None: it lives."""

    def run(self, names: Sequence[str]) -> int:
        """Plant all (or the named) mutants; returns how many live."""
        living = 0
        for mutant in self.mutants:
            if names and mutant.name not in names:
                continue
            verdict = self._verdict(mutant)
            living += not verdict.startswith("killed")
            print(f"{mutant.name:<66} {verdict}", flush=True)
        print(f"{living} of {len(self.mutants)} live")
        return living

    def _verdict(self, mutant: Mutant) -> str:
        with tempfile.TemporaryDirectory(prefix="flowshare-mutant-") as name:
            folder = Path(name)
            _copy(folder, self.tests)
            source = folder / "flowshare" / self.package / f"{mutant.module}.py"
            text = source.read_text()
            if mutant.old not in text:
                return "DOES NOT FIT THE SOURCE"
            source.write_text(text.replace(mutant.old, mutant.new))
            killer = self.killer(folder)
        return "LIVES" if killer is None else f"killed {killer}"


def _copy(folder: Path, wanted: Sequence[str]) -> None:
    """Copy the sources and the tests. All tests come compiled, so that only what is mutated is compiled anew."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "flowshare", folder / "flowshare", ignore=UNCOMPILED if wanted else None)
    if not wanted:
        shutil.copytree(ROOT / "tests", folder / "tests")
    for name in wanted:
        source, target = ROOT / "tests" / name, folder / "tests" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, ignore=UNCOMPILED) if source.is_dir() else shutil.copy(source, target)
        for room in target.parents[: len(Path(name).parts)]:
            (room / "__init__.py").touch()


def hunted(hunts: Sequence[Hunt], names: Sequence[str]) -> int:
    """Run the hunts that have any of these mutants (none named: all); how many live."""
    return sum(hunt.run(names) for hunt in hunts if not names or any(mutant.name in names for mutant in hunt.mutants))


def scenarios(sections: str, *, slow: bool) -> Sequence[str]:
    """A command of `by`: the scenarios of these sections, on the core and a server. slow: those, too."""
    return ("-c", SCENARIOS.format(sections=sections, slow=slow))
