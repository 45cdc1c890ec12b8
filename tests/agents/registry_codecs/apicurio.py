"""A real schema registry for tests: Apicurio, fetched by Maven, its data in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from flowshare.dev.jars import FETCH_LIMIT_S, libraries, locked
from flowshare.dev.java import java
from flowshare.dev.probe import HOST, free_ports
from flowshare.dev.processes import tied_to_parent
from tests.jvm import QUICK_JVM
from tests.waiting import blocking_until

JAVA = 21
POM = Path(__file__).with_name("apicurio.xml")
VERSION = "3.3.3"
START_LIMIT_S = 240.0


def unpacked() -> Path:
    """The folder of the registry's program. Raises: DevFailure."""
    fetched = libraries(f"apicurio/{VERSION}", POM.read_bytes())
    target = fetched.with_name(f"{fetched.name}-unpacked")
    with locked(fetched.with_name(f"{fetched.name}.unpack.lock"), FETCH_LIMIT_S):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=fetched.parent) as draft:
                [archive] = fetched.glob("*.tar.gz")
                with tarfile.open(archive) as opened:
                    opened.extractall(draft, filter="data")
                Path(draft).rename(target)
                Path(draft).mkdir()
    return target


class Apicurio:
    """One registry on one port."""

    def __init__(self) -> None:
        """Raises: DevFailure: there is no Java of 21 or newer, or no Maven."""
        self._java = java(JAVA)
        self._folder = unpacked()
        self.port, self._management_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    def start(self) -> None:
        ports = {"QUARKUS_HTTP_PORT": str(self.port), "QUARKUS_MANAGEMENT_PORT": str(self._management_port)}
        environment = {**os.environ, **ports, "QUARKUS_HTTP_HOST": HOST, "QUARKUS_MANAGEMENT_HOST": HOST}
        self._process = subprocess.Popen(
            [str(self._java), *QUICK_JVM, "-jar", "quarkus-run.jar"],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=tied_to_parent(),
        )
        blocking_until(self._answers, "the registry answers", good=bool, limit_s=START_LIMIT_S)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the registry has ended"
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stand_still(self) -> None:
        """Answer nothing more, and lose nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None
