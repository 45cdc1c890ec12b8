"""Measure the cost of an agent on the embedded backend, beside other tools that can run on the same machine.

    python benchmarks/agent.py            all sections, each in fresh processes, medians
    python benchmarks/agent.py --section noop --records 1000000

Sections: noop, json (an agent over one partition), traced, unsampled (noop with OpenTelemetry), decode (bare reading of
the same batches), faust (Faust's own agent loop, in process), sleep (10 ms handlers against a bare pool), latency (send
to handler), start (process start).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import uvloop

from common import embedded_url, fill, in_fresh_process, info, median_of, verdict

HERE = Path(__file__).resolve()
VALUE = b"x" * 100
JSON_VALUE = b'{"id": 12345, "amount": 12.5, "customer": "c-1234", "pad": "%s"}' % (b"x" * 38)


class Meter:
    """Counts calls; knows when the first and the last of them came."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.seen = 0
        self.first = 0.0
        self.last = 0.0
        self.all_seen = asyncio.Event()

    def hit(self) -> None:
        if self.seen == 0:
            self.first = time.perf_counter()
        self.seen += 1
        if self.seen == self.total:
            self.last = time.perf_counter()
            self.all_seen.set()

    @property
    def rate(self) -> float:
        return (self.total - 1) / (self.last - self.first)


def run_app(make, url: str) -> dict[str, float]:
    """Run an app made by `make(url)` until its meter has seen everything."""

    async def main() -> dict[str, float]:
        app, meter = make(url)
        cpu = time.process_time()
        async with app.running():
            await meter.all_seen.wait()
        return {"rate": meter.rate, "cpu_us": (time.process_time() - cpu) / meter.total * 1e6}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def section_noop(records: int) -> dict[str, float]:
    import flowshare as fs

    def make(url: str):
        app = fs.App("bench", broker=url)
        meter = Meter(records)
        hit = meter.hit

        @app.share_agent(app.topic("values", value_type=bytes))
        async def noop(value: bytes) -> None:
            hit()

        return app, meter

    with embedded_url() as url:
        fill(url, "values", [VALUE] * records)
        return run_app(make, url)


def section_traced(records: int) -> dict[str, float]:
    """The no-op agent with OpenTelemetry, every record sampled; spans go to nobody, in batches."""
    return with_spans(records, 1.0)


def section_unsampled(records: int) -> dict[str, float]:
    """The same, none sampled."""
    return with_spans(records, 0.0)


def with_spans(records: int, ratio: float) -> dict[str, float]:
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    class Nobody(SpanExporter):
        def export(self, spans):
            return SpanExportResult.SUCCESS

    tracers = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)))
    tracers.add_span_processor(BatchSpanProcessor(Nobody()))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider())
    return section_noop(records)


def section_json(records: int) -> dict[str, float]:
    import flowshare as fs

    def make(url: str):
        app = fs.App("bench", broker=url)
        meter = Meter(records)
        hit = meter.hit

        @app.share_agent("values")
        async def decode(value: dict) -> None:
            value["id"]
            hit()

        return app, meter

    with embedded_url() as url:
        fill(url, "values", [JSON_VALUE] * records)
        return run_app(make, url)


def section_decode(records: int) -> dict[str, float]:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder
    from aiokafka.record.memory_records import MemoryRecords

    batches = []
    for base in range(0, records, 860):
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
        for number in range(min(860, records - base)):
            builder.append(number, 1_700_000_000_000, None, VALUE, [])
        batches.append(bytes(builder.build()))
    started = time.perf_counter()
    total = 0
    for raw in batches:
        reader = MemoryRecords(raw)
        while reader.has_next():
            for record in reader.next_batch():
                record.value
                total += 1
    return {"rate": total / (time.perf_counter() - started)}


def section_faust(records: int) -> dict[str, float]:
    import faust

    async def main() -> dict[str, float]:
        app = faust.App("bench-faust", broker="kafka://127.0.0.1:1", store="memory://", value_serializer="raw")
        channel = app.channel(value_type=bytes)
        meter = Meter(records)

        @app.agent(channel)
        async def noop(stream) -> None:
            async for _ in stream:
                meter.hit()

        app.finalize()
        app.flow_control.resume()
        await noop.start()
        for _ in range(records):
            await channel.put(VALUE)
        await meter.all_seen.wait()
        figures = {"rate": meter.rate}
        sys.stdout.write(json.dumps(figures) + "\n")
        sys.stdout.flush()
        os._exit(0)  # Faust's stop is not what is measured

    asyncio.run(main())
    return {}


def section_sleep(records: int, concurrency: int) -> dict[str, float]:
    import flowshare as fs

    async def bare() -> float:
        waiting = deque(range(records))

        async def slot() -> None:
            while waiting:
                waiting.popleft()
                await asyncio.sleep(0.01)

        started = time.perf_counter()
        await asyncio.gather(*(slot() for _ in range(concurrency)))
        return records / (time.perf_counter() - started)

    def make(url: str):
        app = fs.App("bench", broker=url)
        meter = Meter(records)
        hit = meter.hit

        @app.share_agent(app.topic("values", value_type=bytes), concurrency=concurrency)
        async def sleep(value: bytes) -> None:
            await asyncio.sleep(0.01)
            hit()

        return app, meter

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        bare_rate = runner.run(bare())
    with embedded_url() as url:
        fill(url, "values", [VALUE] * records)
        figures = run_app(make, url)
    return {"rate": figures["rate"], "bare": bare_rate, "ratio": figures["rate"] / bare_rate}


def section_latency(records: int) -> dict[str, float]:
    import flowshare as fs

    seen: list[float] = []

    async def main(url: str) -> None:
        app = fs.App("bench", broker=url)
        stamps = app.topic("stamps", value_type=bytes)
        done = asyncio.Event()

        @app.share_agent(stamps)
        async def receive(value: bytes) -> None:
            seen.append(time.perf_counter() - float(value))
            if len(seen) == records:
                done.set()

        async with app.running():
            await stamps.send(value=repr(time.perf_counter()).encode())  # the first one warms the path
            await asyncio.sleep(0.5)
            seen.clear()
            sends = []
            started = time.perf_counter()
            for number in range(records):
                pause = started + number / 1000 - time.perf_counter()
                if pause > 0:
                    await asyncio.sleep(pause)
                sends.append(asyncio.ensure_future(stamps.send(value=repr(time.perf_counter()).encode())))
            await asyncio.gather(*sends)
            await done.wait()

    with embedded_url() as url:
        fill(url, "stamps", [])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main(url))
    hand_over = bare_hand_over(records)
    return {**percentiles("agent", seen), **percentiles("queue", hand_over)}


def bare_hand_over(records: int) -> list[float]:
    """The same rate over an asyncio queue between two threads' loops."""
    seen: list[float] = []
    ready = threading.Event()
    there: dict[str, object] = {}

    async def receive() -> None:
        queue: asyncio.Queue[float] = asyncio.Queue()
        there.update(loop=asyncio.get_running_loop(), queue=queue)
        ready.set()
        for _ in range(records):
            stamp = await queue.get()
            seen.append(time.perf_counter() - stamp)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(receive())

    async def send() -> None:
        started = time.perf_counter()
        for number in range(records):
            pause = started + number / 1000 - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            there["loop"].call_soon_threadsafe(there["queue"].put_nowait, time.perf_counter())

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(send())
    thread.join()
    return seen


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        f"{name}_p50_ms": ordered[len(ordered) // 2] * 1000,
        f"{name}_p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
        f"{name}_max_ms": ordered[-1] * 1000,
    }


def section_start(records: int) -> dict[str, float]:
    """Seconds from starting `flowshare worker` to its first handled record, and from SIGTERM to its end."""
    source = (
        "import os, time\nimport flowshare as fs\n"
        "app = fs.App('bench', broker=os.environ['URL'])\n"
        "@app.share_agent(app.topic('values', value_type=bytes))\n"
        "async def first(value: bytes) -> None:\n"
        "    print('HANDLED', time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)\n"
    )
    with embedded_url() as url, tempfile.TemporaryDirectory() as folder:
        fill(url, "values", [VALUE] * records)
        Path(folder, "startapp.py").write_text(source)
        started = time.clock_gettime(time.CLOCK_MONOTONIC)
        worker = subprocess.Popen(
            [str(Path(sys.executable).parent / "flowshare"), "worker", "startapp:app"],
            cwd=folder,
            env={**os.environ, "URL": url},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert worker.stdout is not None
        line = next(line for line in worker.stdout if line.startswith("HANDLED"))
        stopping = time.perf_counter()
        worker.terminate()
        worker.communicate(timeout=30)
        return {"seconds": float(line.split()[1]) - started, "stop": time.perf_counter() - stopping}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if options.section:
        section = globals()[f"section_{options.section}"]
        figures = (
            section(options.records, options.concurrency) if options.section == "sleep" else section(options.records)
        )
        print(json.dumps(figures))
        return
    script = str(HERE)
    noop = median_of(options.runs, script, "noop", records=options.records)
    decode = median_of(options.runs, script, "decode", records=options.records)
    faust = in_fresh_process(script, "faust", records=options.records // 10)
    verdict("no-op agent, default options", noop["rate"], 300_000, unit="records/s")
    info("  its CPU, both threads", noop["cpu_us"], unit="µs/record")
    info("bare decoding of the same batches", decode["rate"], unit="records/s")
    info("  no-op agent / bare decoding", noop["rate"] / decode["rate"], unit="×")
    info("Faust's own agent loop, in process, no broker", faust["rate"], unit="records/s")
    info("  no-op agent / Faust's agent loop", noop["rate"] / faust["rate"], unit="×")
    rate = median_of(options.runs, script, "json", records=options.records)["rate"]
    verdict("JSON-decoding agent", rate, 200_000, unit="records/s")
    for section, about in (("unsampled", "none sampled"), ("traced", "every record sampled")):
        spans = median_of(options.runs, script, section, records=options.records // 10)
        info(f"no-op agent with OpenTelemetry, {about}", spans["rate"], unit="records/s")
        info("  its CPU, all threads", spans["cpu_us"], unit="µs/record")
    for concurrency in (100, 400):
        slept = median_of(options.runs, script, "sleep", records=concurrency * 300, concurrency=concurrency)
        info(f"10 ms handlers, concurrency {concurrency}", slept["rate"], unit="records/s")
        info("  a bare uvloop pool", slept["bare"], unit="records/s")
        verdict("  agent / bare pool", slept["ratio"] * 100, 97, unit="%")
    latency = median_of(options.runs, script, "latency", records=5000)
    info("send → handler at 1,000/s, p50", latency["agent_p50_ms"], unit="ms")
    verdict("send → handler at 1,000/s, p99", latency["agent_p99_ms"], 10, unit="ms", at_most=True)
    info("  bare hand-over between two threads, p50", latency["queue_p50_ms"], unit="ms")
    info("  bare hand-over between two threads, p99", latency["queue_p99_ms"], unit="ms")
    life = median_of(options.runs, script, "start", records=1)
    verdict("process start → first record handled", life["seconds"], 1.5, unit="s", at_most=True)
    info("SIGTERM → an idle worker's process has ended", life["stop"], unit="s")


if __name__ == "__main__":
    main()
