"""Where a query's checkpoint is; and whose a folder of Spark's file sink is: goes on, is claimed, or is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import UsageError
from flowshare.clock import LoopClock
from flowshare.spark.pipeline import query, supervisor
from flowshare.spark.pipeline.query import CLAIM, METADATA, check_claim, claim, source
from flowshare.spark.pipeline.supervisor import PipelineSupervisor
from flowshare.spark.source.checkpoint import local_checkpoint


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


def pipeline_with(checkpoint):
    app = fs.App("shop", broker="kafka://localhost:9092")
    return app.share_pipeline("orders", name="etl", checkpoint=checkpoint)(lambda rows, number: None)


@pytest.fixture
def on_hdfs(monkeypatch):
    """Spark, whose paths without a scheme are on HDFS."""

    def folder(_spark, root):
        return SimpleNamespace(path=f"hdfs://there/user/me/{root}")

    for module in (query, supervisor):
        monkeypatch.setattr(module, "HadoopFolder", folder)
    reader = SimpleNamespace(format=lambda _: reader, options=lambda **given: SimpleNamespace(load=lambda: given))
    context = SimpleNamespace(master="local[2]", defaultParallelism=2)
    return SimpleNamespace(readStream=reader, sparkContext=context)


def test_a_source_is_told_its_checkpoint_as_spark_resolves_it(on_hdfs):
    told = source(pipeline_with("cp"), on_hdfs, "kafka://localhost:9092")

    assert told["checkpoint"] == "hdfs://there/user/me/cp"


def test_a_pipeline_that_starts_tells_where_its_checkpoint_is(on_hdfs, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "start_query", lambda *_, **__: SimpleNamespace())
    backend, clock = SimpleNamespace(), LoopClock()
    pipelines = PipelineSupervisor([pipeline_with("cp")], spark=on_hdfs, backend=backend, broker="", clock=clock)
    (running,) = pipelines._running

    with caplog.at_level("INFO", "flowshare.pipeline"):
        asyncio.run(pipelines._begin(running))

    assert running.place == "hdfs://there/user/me/cp"
    assert "checkpoint hdfs://there/user/me/cp" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cp", "50%20off", "a#b", "a?b"])
def test_a_checkpoint_is_found_where_spark_has_it(spark, name):
    place = query.HadoopFolder(spark, name)

    assert local_checkpoint(place.path).root == Path.cwd() / name


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
