"""Whose a folder of Spark's file sink is: one query's, with one checkpoint.

Spark's file sink knows a batch by its number alone: of a query that counts from 0 again (its checkpoint is new, or
older than the folder) it leaves out every batch whose number the folder's `_spark_metadata` has, without a word, and
the records are accepted. So a folder is claimed for a query before its first batch, by a file beside Spark's own, and a
query whose checkpoint does not go with the folder is refused before it takes a record.

| the folder has | this query's checkpoint | |
|---|---|---|
| no batch | any | claimed |
| batches, and this query's claim | knows all of them | goes on |
| batches, and no claim | knows all of them | claimed: it died before it could |
| batches, and another query's claim | any | refused |
| batches | is new, or knows fewer of them | refused |
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLAIM: Final = "_flowshare_query"
"""Names that begin with `_` are no data to Spark's readers."""
METADATA: Final = "_spark_metadata"


class Files:
    """A folder on any file system that Spark reaches."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - py4j's way to Hadoop's file systems
        self._jvm = jvm
        self._root = jvm.org.apache.hadoop.fs.Path(root)
        self._system: Any = self._root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
        self.path = str(self._system.makeQualified(self._root).toString())
        """With the file system's scheme."""

    @property
    def local(self) -> bool:
        """Whether it is on a file system of this machine."""
        return str(self._system.getScheme()) == "file"

    def newest(self, name: str) -> int:
        """The highest number among the files of one of Spark's logs; −1: there is none."""
        folder = self._at(name)
        if not self._system.exists(folder):
            return -1
        names = [str(one.getPath().getName()).removesuffix(".compact") for one in self._system.listStatus(folder)]
        return max((int(one) for one in names if one.isdigit()), default=-1)

    def read(self, name: str) -> str | None:
        """A file's text; None: there is none."""
        at = self._at(name)
        if not self._system.exists(at):
            return None
        stream = self._system.open(at)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, over one that is there."""
        stream = self._system.create(self._at(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)


def query_of(checkpoint: Files) -> str | None:
    """The id of the query whose checkpoint this is; None: it is new."""
    text = checkpoint.read("metadata")
    return None if text is None else str(json.loads(text)["id"])


def check_claim(name: str, folder: Files, checkpoint: Files) -> None:
    """See, before a pipeline starts, that its folder goes with its checkpoint. Raises: UsageError with what to do."""
    written = folder.newest(METADATA)
    if written < 0:
        return
    known, query = checkpoint.newest("offsets"), query_of(checkpoint)
    claim = json.loads(folder.read(CLAIM) or "{}")
    if written <= known and claim.get("query", query) == query:
        return
    what = f"its checkpoint {checkpoint.path} is new" if known < 0 else f"its checkpoint has {known + 1} of them"
    if query is not None and claim.get("query", query) != query:
        what = "they are another query's"
    where = f" It was written with the checkpoint {claim['checkpoint']}." if "checkpoint" in claim else ""
    raise UsageError(
        f"pipeline {name}: the folder {folder.path} has {written + 1} batches of a query, and {what}: Spark's file "
        f"sink would leave out batches of the same numbers, and their records would be lost.{where} Give the pipeline "
        "that checkpoint (checkpoint=…), or another folder, or delete the folder with what is in it"
    )


def claim(folder: Files, checkpoint: Files, query: str) -> None:
    """Note that a folder is this query's from now on."""
    text = json.dumps({"query": query, "checkpoint": checkpoint.path})
    if folder.read(CLAIM) != text:
        folder.write(CLAIM, text)
