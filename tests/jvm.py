"""Options of JVMs that the tests start and end again within minutes.

Without the second compiler a driver of Spark is there for two thirds of the processor time, and less.
"""

from __future__ import annotations

from typing import Final

QUICK_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
QUICK_DRIVER: Final = "spark.driver.extraJavaOptions=" + " ".join(QUICK_JVM)
"""A setting of Spark."""
