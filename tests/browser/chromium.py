"""The browser: Chromium's headless shell from the npm package @sparticuz/chromium, which carries it whole.

Other ways bring none that is pinned and can be had everywhere: Playwright fetches its own from its makers' server,
which a closed network does not reach, and a distribution's Chromium needs root and is another one each week. The
package is made for machines with next to nothing on them: the libraries that Chromium wants and a font are in it. Of
its JavaScript nothing is used.

It is for Linux on x86-64. Elsewhere FLOWSHARE_TEST_BROWSER may name a Chromium or Chrome that is there.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import cramjam

from flowshare.dev import DevFailure
from flowshare.dev.processes import said
from tests.browser.npm import Package, open_archive, unpacked

NAMED = "FLOWSHARE_TEST_BROWSER"
CHROMIUM = Package(
    "@sparticuz/chromium",
    "153.0.0",
    "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
)
LAYOUT = "1"
VERSION_LIMIT_S = 30.0
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">flowshare/fonts</cachedir>
  <alias><family>sans-serif</family><prefer><family>Open Sans</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>system-ui</family><prefer><family>Open Sans</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""
"""Only the fonts beside it: a page looks the same on every machine."""


@dataclass(frozen=True)
class Chromium:
    """A browser that runs here: the program, and what it needs in its environment."""

    program: Path
    environment: dict[str, str]


def chromium() -> Chromium:
    """The browser, fetched (70 MB) and unpacked (200 MB) into the user's cache directory when it is not there.

    Raises: DevFailure when it cannot be had, or does not run here; the text says what to do.
    """
    named = os.environ.get(NAMED)
    if named:
        found = Chromium(Path(named), {})
    elif sys.platform == "linux" and platform.machine() == "x86_64":
        folder = unpacked(CHROMIUM, LAYOUT, _unpack)
        found = Chromium(
            folder / "headless_shell",
            {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_FILE": str(folder / "fonts.conf")},
        )
    else:
        raise DevFailure(
            f"the browser for the tests is for Linux on x86-64, this is {sys.platform} on {platform.machine()}: set "
            f"{NAMED} to the program of a Chromium or Chrome"
        )
    _must_run(found)
    return found


def _unpack(package: Path, folder: Path) -> None:
    program = folder / "headless_shell"
    program.write_bytes(_plain(package / "bin" / "chromium.br"))
    program.chmod(0o755)
    for name in ("al2023", "fonts"):
        archive = folder / f"{name}.tar"
        archive.write_bytes(_plain(package / "bin" / f"{name}.tar.br"))
        open_archive(archive, folder)
        archive.unlink()
    (folder / "fonts.conf").write_text(FONTS)
    for font in _more_fonts():
        shutil.copy(font, folder / "fonts")


def _plain(file: Path) -> memoryview:
    return memoryview(cramjam.brotli.decompress(file.read_bytes()))


def _more_fonts() -> list[Path]:
    """DejaVu's, for fixed widths and for symbols; matplotlib, which the demo draws with, carries them."""
    package = importlib.util.find_spec("matplotlib")
    if package is None or package.origin is None:
        return []
    return sorted((Path(package.origin).parent / "mpl-data" / "fonts" / "ttf").glob("DejaVuSans*.ttf"))


def _must_run(browser: Chromium) -> None:
    command = ["env", *(f"{name}={value}" for name, value in browser.environment.items())]
    try:
        done = said([*command, str(browser.program), "--version"], VERSION_LIMIT_S)
        why = (done.stderr + done.stdout).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    else:
        if done.returncode == 0:
            return
    raise DevFailure(f"{browser.program} does not run here; set {NAMED} to a Chromium or Chrome that does. {why[:800]}")
