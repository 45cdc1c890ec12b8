"""The errors that users meet: one root, one tree, and its text is true."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flowshare as fs
from flowshare import errors
from tests.kafka.fixtures import refuse

OF_SPARK = {name for name, module in errors._WHERE.items() if module.startswith("flowshare.spark.")}
OF_COMMANDS = {
    *("BadAclFile", "BadMaster", "BadTls", "BadUsersFile", "ListenerError", "NotShipped", "StandaloneError"),
    *("BadForm", "BadLogins", "ConsoleError", "Missing", "NotAnswering"),
}
"""Errors that only a command meets, as one line; a backend raises a BackendError instead."""
TAKEN_UP = {
    *("CorruptBatches", "InvalidRecord", "InvalidTimestamp", "InvalidTopic", "InvalidTopicConfig", "NotLed"),
    *(
        "OffsetOutOfRange",
        "ProducerRefused",
        "RecordsTooLarge",
        "TooFewBrokers",
        "TopicExists",
        "UnknownTopic",
    ),  # Kafka's error codes
    "NoColumn",  # a pipeline says it as a UsageError
    "NotReadYet",  # the share-partition reads again
    "GenerationOver",  # what was read by it is dropped
    "AnotherBroker",  # the client looks for its brokers anew
    *("Blamed", "InDoubt", "NotAllowed", "NotDecided", "OutputRefused", "Undecided"),  # whoever settles answers them
}
LINE = re.compile(r"^( {4,})([A-Z]\w+)(?:  |$)")
NOT_OF_USERS = {
    "flowshare.core_errors": "what the cores answer to peers, as error codes",
    "flowshare.share": "a move that the core's table does not have: a fault of ours",
    "flowshare.slots": "taken up by the fleet, which says it in errors of its own",
    "flowshare.kmq": "records of the markers topic that are no markers; counted",
    "flowshare.protocol": "bytes of peers; ends their connection",
    "flowshare.server": "what a peer is answered, or its connection's end",
    "flowshare.dev": "of the command `flowshare dev`",
    "flowshare.cli": "the one line that a command ends with",
    "flowshare.ops": "the one line that an operator's deed ends with",
}


def _tree() -> list[tuple[str, str | None]]:
    """Names of the module's text with the name that each stands under."""
    above: list[tuple[int, str]] = []
    rows: list[tuple[str, str | None]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = LINE.match(line)
        if found is None:
            continue
        indent, name = len(found[1]), found[2]
        while above and above[-1][0] >= indent:
            above.pop()
        rows.append((name, above[-1][1] if above else None))
        above.append((indent, name))
    return rows


@pytest.mark.parametrize(("name", "parent"), _tree())
def test_the_tree_in_the_text_is_the_tree_of_the_classes(name: str, parent: str | None) -> None:
    if name in OF_SPARK and importlib.util.find_spec("pyspark") is None:
        refuse("pyspark is not installed: pip install 'flowshare[spark]'")
    kind = getattr(fs.errors, name)

    assert issubclass(kind, fs.FlowshareError)
    assert parent is None or getattr(fs.errors, parent) in kind.__bases__


def test_the_text_names_each_error_that_is_exported() -> None:
    assert {name for name, _ in _tree()} == set(errors.__all__)


def test_an_error_under_the_root_is_in_the_text_or_met_by_no_program() -> None:
    """By the source, so that it needs no Spark."""
    bases: dict[str, set[str]] = {}
    for path in Path(fs.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                above = {base.id for base in node.bases if isinstance(base, ast.Name)}
                bases.setdefault(node.name, set()).update(above)  # classes of two rooms may have one name
    under = {"FlowshareError"}
    while more := {name for name, above in bases.items() if above & under} - under:
        under |= more

    assert under - {name for name, _ in _tree()} == OF_COMMANDS | TAKEN_UP


def test_an_error_of_ours_is_under_the_root_or_no_users() -> None:
    stray = set()
    for module in pkgutil.walk_packages(fs.__path__, "flowshare."):
        room = ".".join(module.name.split(".")[:2])
        if room == "flowshare.spark" or room in NOT_OF_USERS:
            continue
        for name, kind in vars(importlib.import_module(module.name)).items():
            own = isinstance(kind, type) and kind.__module__ == module.name and issubclass(kind, Exception)
            if own and not name.startswith("_") and not issubclass(kind, fs.FlowshareError):
                stray.add(f"{module.name}.{name}")

    assert stray == {
        "flowshare.agents.codecs.json_look.TooLong",
        "flowshare.agents.codecs.wire.NotFramed",
        "flowshare.agents.handler.outcomes.Reject",
        "flowshare.agents.handler.outcomes.Release",
        "flowshare.agents.pages.own_user.OtherUser",
        "flowshare.agents.run.lookups.GivenBack",
        "flowshare.client.net.requests.AnswerFrameError",
        "flowshare.testing.virtual.Deadlock",
    }


def test_an_unknown_error_is_refused_with_where_to_look() -> None:
    with pytest.raises(AttributeError, match="help"):
        fs.errors.Nonsense  # noqa: B018


def test_the_root_is_there_without_anything_else() -> None:
    code = (
        "import sys, flowshare; flowshare.FlowshareError; "
        "print([name for name in ('faust', 'pyspark', 'aiokafka') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
