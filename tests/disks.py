"""Small file systems, to be filled up by tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of `size` (as mount says it) at `path`; needs the right to mount, which CI as root must have."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"root may not mount a file system: {done.stderr}")
        pytest.skip(f"root may not mount a file system here: {done.stderr}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def resize(path: Path, size: str) -> None:
    """Give the file system another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(path)], check=True)


def fill(path: Path) -> None:
    """Leave not one free byte on the file system."""
    with (path / "junk").open("wb", buffering=0) as junk, contextlib.suppress(OSError):
        while True:
            junk.write(bytes(4096))
