"""The application on its way to executors that do not share this machine's files: one zip on Spark's list of files.

Shipped is what the application's own folder has of it: the package that holds the module, or the module, and whatever
else was imported from the folder by then. What is installed (site-packages) is expected to be installed where the
executors run, as flowshare itself is; what spark-submit shipped (`--py-files`) is there already. Modules that handlers
import later from that folder, outside a package that is shipped, are not found: import them at the top.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

SIZE_MAX: Final = 64 << 20
"""Bytes of files that are shipped at most: more is no code, and belongs elsewhere."""
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_LEFT_OUT: Final = frozenset({"__pycache__", ".git", ".venv", "node_modules"})
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class NotShipped(RuntimeError):
    """The application cannot be shipped; the text says what to do."""


def ship(module: str, folder: Path) -> Path | None:
    """Write the zip of the application that was imported as `module` into `folder`; None: it needs no shipping.

    The same files make the same zip. Raises: NotShipped (too large), OSError.
    """
    root = root_of(module)
    if root is None:
        return None
    files = sorted(set(files_of(module, root)))
    size = sum(file.stat().st_size for file in files)
    if size > SIZE_MAX:
        raise NotShipped(
            f"the application's files below {root} are {size >> 20} MiB, and {SIZE_MAX >> 20} may be shipped: "
            "keep data out of its package, or install it where the executors run"
        )
    draft = folder / "draft.zip"
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.writestr(zipfile.ZipInfo(file.relative_to(root).as_posix(), _EPOCH), file.read_bytes())
    digest = hashlib.sha256(draft.read_bytes()).hexdigest()[:12]
    return draft.rename(folder / f"flowshare-app-{digest}.zip")


def root_of(module: str) -> Path | None:
    """The folder from which a loaded module was imported; None when it is installed, or lies in an archive."""
    file = _file(sys.modules.get(module))
    if file is None:
        return None
    parts = module.count(".") + (file.name == "__init__.py")
    root = file.parents[parts]
    return None if _INSTALLED & set(root.parts) else root


def files_of(module: str, root: Path) -> Iterator[Path]:
    """Files of the application below `root`: its packages whole, its modules by themselves."""
    names = {module.partition(".")[0]}
    for name, loaded in tuple(sys.modules.items()):
        file = _file(loaded)
        if file is not None and file.is_relative_to(root) and _own(file.relative_to(root)):
            names.add(name.partition(".")[0])
    for name in names - {"__main__", "flowshare"}:
        package = root / name
        if package.is_dir():
            yield from (one for one in package.rglob("*") if one.is_file() and _own(one.relative_to(root)))
        elif (root / f"{name}.py").is_file():
            yield root / f"{name}.py"


def _own(path: Path) -> bool:
    return not (_INSTALLED | _LEFT_OUT) & set(path.parts)


def _file(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    if not name:
        return None
    file = Path(name).resolve()
    return file if file.is_file() and file.suffix in (".py", ".so", ".pyd") else None
