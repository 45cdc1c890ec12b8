"""Load the App object of `module:app`; every failure gives one message that says what to do.

The working directory is put in front of `sys.path`, as `python -m` does. This module does not import faust; the user's
module does.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from flowshare.agents.handler.texts import TEXT_MAX, said
from flowshare.core_errors import FlowshareError

if TYPE_CHECKING:
    from flowshare.agents.app.app import App

DEFAULT_ATTRIBUTE: Final = "app"
_OWN_FOLDER: Final = Path(__file__).parents[2]


class AppNotFound(FlowshareError):
    """`module:app` does not lead to an App; the text is one line that says what to do."""


def load_app(path: str) -> App:
    """Import `module:attribute` (`:app` when left out) and return the App.

    Raises: AppNotFound. An error inside the user's module is its `__cause__`.
    """
    module_name, attribute = split_path(path)
    module = _import(module_name)
    return _find(module, attribute)


def split_path(path: str) -> tuple[str, str]:
    """Split `module:attribute` into module and attribute.

    Raises: AppNotFound for a file name, or for something that is no Python name.
    """
    module_name, _, attribute = path.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        dotted = module_name.removesuffix(".py").replace("\\", "/").strip("./").replace("/", ".")
        raise AppNotFound(f"{path!r} is a file; write the module's name instead: {dotted}:{attribute}")
    if not module_name or not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        raise AppNotFound(f"{path!r} is not of the form module:app, for example shop:app or shop.workers:app")
    return module_name, attribute


def _import(name: str) -> ModuleType:
    cwd = str(Path.cwd())
    if cwd not in sys.path:
        sys.path.insert(0, cwd)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotFound(_no_module(name, error.name)) from None
        raise AppNotFound(
            f"importing {name} failed{_where(error)}: it imports {error.name!r}, which is not installed"
        ) from error
    except (Exception, SystemExit) as error:  # whatever the user's module does
        text = " ".join(said(error, TEXT_MAX).split()) or "no message"
        kind = "" if type(error).__module__.startswith("flowshare.") else f"{type(error).__name__}: "
        raise AppNotFound(f"importing {name} failed{_where(error)}: {kind}{text}") from error


def _where(error: BaseException) -> str:
    """Return the last place in the user's files that the error went through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "importlib" in frame.filename or "site-packages" in frame.filename:
            continue
        if not Path(frame.filename).is_relative_to(_OWN_FOLDER):
            return f" ({os.path.relpath(frame.filename)} line {frame.lineno})"
    return ""


def _no_module(name: str, missing: str) -> str:
    if missing != name:
        return f"there is no module {name}: {missing} is not a package here (looked in {Path.cwd()} and sys.path)"
    here = Path.cwd()
    files = [path.stem for path in here.glob("*.py")] + [path.parent.name for path in here.glob("*/__init__.py")]
    near = difflib.get_close_matches(name, files, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"there is no module {name} in {Path.cwd()} or on sys.path{hint or '; start in the directory that holds it'}"


def _find(module: ModuleType, attribute: str) -> App:
    from flowshare.agents.app.app import App

    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    target: object = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise AppNotFound(_no_attribute(module, attribute, apps))
        target = getattr(target, part)
    if isinstance(target, App):
        return target
    kind = type(target)
    if any(base.__module__ == "faust.app.base" for base in kind.__mro__):
        raise AppNotFound(f"{module.__name__}:{attribute} is a faust.App; make it a flowshare.App to use share agents")
    hint = _choose(module, apps)
    raise AppNotFound(f"{module.__name__}:{attribute} is a {kind.__name__}, not a flowshare.App{hint}")


def _no_attribute(module: ModuleType, attribute: str, apps: list[str]) -> str:
    near = difflib.get_close_matches(attribute, apps or list(vars(module)), n=1)
    hint = f"; did you mean {module.__name__}:{near[0]}?" if near else _choose(module, apps)
    return f"module {module.__name__} has no {attribute!r}{hint}"


def _choose(module: ModuleType, apps: list[str]) -> str:
    if not apps:
        return f'; {module.__name__} makes no App (app = flowshare.App("name", broker="embedded:///path"))'
    return "; it has " + ", ".join(f"{module.__name__}:{name}" for name in apps)
