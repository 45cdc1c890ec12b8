"""Whose a folder of Spark's file sink is: goes on, is claimed, or is refused."""

from __future__ import annotations

import json

import pytest

from flowshare.agents.handler.errors import UsageError
from flowshare.spark.pipeline.query import CLAIM, METADATA, check_claim, claim


class HadoopFolder:
    """A folder in memory. logs: newest entry of each of Spark's logs."""

    def __init__(self, path, **logs):
        self.path, self.logs, self.texts = path, logs, {}

    def newest(self, name):
        return self.logs.get(name, -1)

    def read(self, name):
        return self.texts.get(name)

    def write(self, name, text):
        self.texts[name] = text


def checkpoint(query=None, batches=0):
    made = HadoopFolder("file:/cp", offsets=batches - 1)
    if query:
        made.texts["metadata"] = json.dumps({"id": query})
    return made


def folder(batches=0, query=None):
    made = HadoopFolder("file:/out", **{METADATA: batches - 1})
    if query:
        claim(made, HadoopFolder("file:/cp of before"), query)
    return made


@pytest.mark.parametrize(
    ("output", "place"),
    [
        (folder(), checkpoint()),
        (folder(), checkpoint("q", 3)),
        (folder(0, "other"), checkpoint("q", 3)),
        (folder(3, "q"), checkpoint("q", 3)),
        (folder(3, "q"), checkpoint("q", 4)),
        (folder(3), checkpoint("q", 3)),
    ],
    ids=[
        "new",
        "the output was deleted",
        "a claim on nothing",
        "the same",
        "a batch under way",
        "died before its claim",
    ],
)
def test_a_folder_that_goes_with_the_checkpoint_is_written_to(output, place):
    check_claim("p", output, place)


@pytest.mark.parametrize(
    ("output", "place", "why"),
    [
        (
            folder(3, "q"),
            checkpoint(),
            "its checkpoint file:/cp is new: .* written with the checkpoint file:/cp of before",
        ),
        (folder(3), checkpoint(), "its checkpoint file:/cp is new"),
        (folder(3, "q"), checkpoint("q", 2), "its checkpoint has 2 of them"),
        (folder(3), checkpoint("q", 2), "its checkpoint has 2 of them"),
        (folder(3, "other"), checkpoint("q", 9), "they are another query's"),
    ],
    ids=["new checkpoint", "new checkpoint, no claim", "older checkpoint", "older, no claim", "another query's"],
)
def test_a_folder_that_does_not_go_with_the_checkpoint_is_refused_with_what_to_do(output, place, why):
    with pytest.raises(
        UsageError, match=f"pipeline p: the folder file:/out has 3 batches of a query, and {why}"
    ) as said:
        check_claim("p", output, place)
    assert "or another folder, or delete the folder" in str(said.value)


def test_a_claim_is_written_once_and_replaced_by_the_next_query():
    output = folder()
    claim(output, checkpoint("q", 1), "q")
    claim(output, checkpoint("r", 1), "r")

    assert json.loads(output.texts[CLAIM])["query"] == "r"
