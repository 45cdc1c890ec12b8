"""A batch into a table of a database, once: what an earlier try of the same batch left is deleted first.

Rows carry the pipeline's name, the query's id and the batch's number. A batch is repeated only when the query died
before Spark had written it down, so its number is the query's highest, and deleting by it finds all of the earlier try.
A new checkpoint is a query of its own, which counts from 0 again and leaves the rows of earlier ones alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from flowshare.agents.sinks import Jdbc

PIPELINE, QUERY, BATCH = "flowshare_pipeline", "flowshare_query", "flowshare_batch"
TABLE: Final = re.compile(r"[A-Za-z_][\w$]*(\.[A-Za-z_][\w$]*){0,2}")


def write_table(name: str, sink: Jdbc, batch: DataFrame, query: str, number: int, *, replace: bool) -> None:
    """Write the rows of a query's batch. replace: they are all that the table is to hold.

    Raises: UsageError, what Spark raises.
    """
    from pyspark.sql.functions import lit

    if TABLE.fullmatch(sink.table) is None:
        raise UsageError(f"pipeline {name}: table {sink.table!r} is no name of a table")
    rows = batch.withColumns({PIPELINE: lit(name), QUERY: lit(query), BATCH: lit(number).cast("bigint")})
    options = {**sink.properties, "url": sink.url, "dbtable": sink.table}
    _prepare(sink, options, rows, query, number, delete=not replace)
    writer = rows.write.format("jdbc").options(**options)
    if replace:
        writer.option("truncate", "true").mode("overwrite").save()
    else:
        writer.mode("append").save()


def _prepare(sink: Jdbc, options: dict[str, str], rows: DataFrame, query: str, number: int, *, delete: bool) -> None:
    """Make the table if it is not there, else delete what an earlier try wrote; over a connection of the driver's.

    Spark makes missing tables only in databases whose errors it can tell apart.
    """
    jvm: Any = rows.sparkSession._jvm  # noqa: SLF001 - py4j's way to java.sql
    jdbc = jvm.org.apache.spark.sql.execution.datasources.jdbc
    properties = jvm.java.util.Properties()
    for key, value in sink.properties.items():
        properties.setProperty(key, value)
    if "driver" in sink.properties:
        jdbc.DriverRegistry.register(sink.properties["driver"])
    connection = jvm.java.sql.DriverManager.getConnection(sink.url, properties)
    try:
        facts = connection.getMetaData()
        upper, lower = facts.storesUpperCaseIdentifiers(), facts.storesLowerCaseIdentifiers()
        name_kept = sink.table.upper() if upper else sink.table.lower() if lower else sink.table
        schema, _, table = name_kept.rpartition(".")
        found = facts.getTables(None, schema or None, table, None)
        there = found.next()
        found.close()
        if not there:
            made = jdbc.JdbcOptionsInWrite(jvm.PythonUtils.toScalaMap(options))
            columns = rows._jdf.schema()  # noqa: SLF001 - Java's own
            jdbc.JdbcUtils.createTable(connection, sink.table, columns, False, made)
        elif delete:
            statement = connection.prepareStatement(f"DELETE FROM {sink.table} WHERE {QUERY} = ? AND {BATCH} = ?")  # noqa: S608 - checked
            statement.setString(1, query)
            statement.setLong(2, number)
            statement.executeUpdate()
            statement.close()
    finally:
        connection.close()
