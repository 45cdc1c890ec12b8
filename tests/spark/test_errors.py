"""Tests of short error messages for users, where Spark prints pages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flowshare.spark.errors import brief, gone

FROM_A_TASK = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted. SQLSTATE: XXKST
=== Streaming Query ===
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 10, in main
    process()

  File "reading.py", line 3, in read
    raise ReadError("topic t is gone")
flowshare.spark.source.reading.ReadError: topic t is gone
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""
FROM_THE_JVM = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function
py4j.Py4JException: Return Message: Traceback (most recent call last):
  File "shop.py", line 10, in each_batch
    batch.write.parquet("/full")
py4j.protocol.Py4JJavaError: An error occurred while calling o83.parquet.
: org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.Writer.write(Writer.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FROM_A_TASK, "flowshare.spark.source.reading.ReadError: topic t is gone"),
        (FROM_THE_JVM, "java.io.IOException: No space left on device"),
        ("\n[NO_COLUMN] x cannot be resolved.\n'Project ['x]\n", "[NO_COLUMN] x cannot be resolved."),
        ("", "no message"),
        ("x" * 1000, "x" * 700),
    ],
)
def test_the_line_that_says_why_is_found(text, line):
    assert brief(text) == line


def test_a_context_whose_jvm_does_not_answer_is_gone():
    assert gone(SimpleNamespace(_jsc=None), "it was stopped") == "Spark has ended: its JVM is gone"


@pytest.mark.parametrize(("stopped", "said"), [(True, "Spark has ended: it was stopped"), (False, None)])
def test_a_context_says_itself_whether_it_was_stopped(stopped, said):
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped)))

    assert gone(context, "it was stopped") == said
