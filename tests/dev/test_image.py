"""The variables for the image, taken by the program that the image itself begins with (it comes with the jars)."""

from __future__ import annotations

import os
import subprocess

import pytest

from flowshare.dev import by_docker
from flowshare.dev.broker import DevBroker, Wanted, await_ready
from flowshare.dev.jars import class_path, jars
from flowshare.dev.java import java
from flowshare.dev.probe import HOST, free_ports
from flowshare.dev.processes import process, tail, tied_to_parent
from tests.kafka.keeper import SETTINGS

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(func_only=True)]


def test_what_the_image_is_told_starts_a_broker(tmp_path):
    port, controller = free_ports(2)
    told = by_docker.image_settings(Wanted(settings=SETTINGS), port)
    # What is the container's alone there is shared with all others here.
    variables = {name: value.replace(":9093", f":{controller}") for name, value in told.items()}
    variables |= {"KAFKA_LOG_DIRS": str(tmp_path / "data"), "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw"}
    for name in ("default", "mounted", "final"):
        (tmp_path / name).mkdir()
    properties = tmp_path / "final" / "server.properties"
    properties.touch()
    run = [str(java()), "-Xmx512m", "-cp", class_path(jars())]

    setup = ["kafka.docker.KafkaDockerWrapper", "setup"]
    for option, name in (("-D", "default"), ("-M", "mounted"), ("-F", "final")):
        setup += [option, str(tmp_path / name)]
    done = subprocess.run(
        [*run, *setup], env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    log = tmp_path / "log"
    with log.open("wb") as file:
        child = subprocess.Popen(
            [*run, "kafka.Kafka", str(properties)], stdout=file, stderr=file, preexec_fn=tied_to_parent()
        )
    try:
        node = process(child.pid)
        assert node is not None
        await_ready(DevBroker(version="4.3.1", addresses=(f"{HOST}:{port}",), processes=(node,)), log=lambda: tail(log))
    finally:
        child.kill()
        child.wait()
