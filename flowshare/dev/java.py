"""Where Java, its compiler and Maven are, and what to install when they are not there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from flowshare.dev.failure import DevFailure

JAVA_MIN: Final = 17
"""Kafka 4's brokers and tools need it (KIP-1013), and so does Spark 4."""

_PACKAGES: Final = {
    "java": "openjdk-17-jre-headless (Debian, Ubuntu), java-21-openjdk-headless (Fedora), openjdk (Homebrew)",
    "javac": "openjdk-17-jdk-headless (Debian, Ubuntu), java-21-openjdk-devel (Fedora), openjdk (Homebrew)",
    "mvn": "maven (Debian, Ubuntu, Fedora, Homebrew)",
}
_CALL_LIMIT_S: Final = 30


def java() -> Path:
    """The Java to run, from JAVA_HOME or the search path. Raises: DevFailure when there is none, or it is too old."""
    found = _tool("java")
    if found is None:
        raise DevFailure(
            f"there is no Java: install {_PACKAGES['java']}, or set JAVA_HOME to a Java {JAVA_MIN} or newer"
        )
    version = _version(found)
    if version < JAVA_MIN:
        raise DevFailure(
            f"{found} is Java {version}, and Kafka and Spark need {JAVA_MIN} or newer: install {_PACKAGES['java']}, "
            "or set JAVA_HOME"
        )
    return found


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


def _tool(name: str) -> Path | None:
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home, "bin", name), os.X_OK):
        return Path(home, "bin", name)
    found = shutil.which(name)
    return Path(found) if found else None


def _version(tool: Path) -> int:
    """The feature release: 8 for "1.8.0_392", 17 for "17.0.15". Raises: DevFailure when it does not say."""
    try:
        told = subprocess.run([tool, "-version"], capture_output=True, text=True, check=False, timeout=_CALL_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DevFailure(f"{tool} does not run: {error}; set JAVA_HOME to a Java {JAVA_MIN} or newer") from error
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if found is None:
        raise DevFailure(f"{tool} -version does not name its version; set JAVA_HOME to a Java {JAVA_MIN} or newer")
    return int(found[1])
