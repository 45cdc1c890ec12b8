"""The parts of the throw-away Kafka, without one: fake docker, mvn and java commands stand in for the real ones."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from flowshare.dev import DevFailure, by_docker, by_jars, jars, kafka_settings
from flowshare.dev.broker import DevBroker, Wanted, start
from flowshare.dev.java import java, java_home, javac, maven
from flowshare.dev.probe import HOST, free_ports, is_free, nodes_seen
from flowshare.dev.processes import Process, birth, process, tail


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A search path of its own; gives a function that puts a Python program there under a name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("flowshare.dev.java._packaged", lambda: None)

    def put(name: str, source: str) -> Path:
        file = folder / name
        file.write_text(f"#!{sys.executable}\n{textwrap.dedent(source)}")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    return put


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "flowshare"


# --- processes ----------------------------------------------------------------------------------------------------


def test_a_process_is_known_by_its_birth_and_is_gone_when_it_has_ended():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = process(child.pid)

    assert found is not None
    assert found.runs
    assert found.end(0)
    assert not found.runs
    child.communicate()
    assert process(child.pid) is None


def test_a_process_that_only_has_the_number_is_left_alone():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    assert Process(child.pid, "another birth").end(0)

    assert birth(child.pid) is not None
    child.communicate(b"\n")
    assert child.returncode == 0


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))

    assert tail(log, 2) == "  line 98\n  line 99"
    assert str(tmp_path / "none") in tail(tmp_path / "none")


# --- Java and Maven -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("find", "package"), [(java, "openjdk-17-jre"), (javac, "openjdk-17-jdk"), (maven, "maven")])
def test_what_is_missing_is_named_with_its_package(commands, find, package):
    with pytest.raises(DevFailure, match=package):
        find()


def test_an_old_java_is_refused(commands):
    commands("java", """import sys; sys.stderr.write('openjdk version "1.8.0_392"')""")

    with pytest.raises(DevFailure, match="is Java 8, and Kafka and Spark need 17"):
        java()


def test_the_java_of_java_home_comes_first(commands, tmp_path, monkeypatch):
    commands("java", """import sys; sys.stderr.write('openjdk version "11.0.1"')""")
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    commands("new", """import sys; sys.stderr.write('openjdk version "21" 2023-09-19')""").rename(home / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert java() == home / "bin" / "java"


@pytest.mark.parametrize("version", [None, "11.0.1"])
def test_the_java_that_pip_brought_is_taken_when_there_is_no_other(commands, cache, monkeypatch, version):
    packaged = commands("packaged", "import sys; print(*sys.argv[1:])")
    monkeypatch.setattr("flowshare.dev.java._packaged", lambda: packaged)
    if version is not None:
        commands("java", f"""import sys; sys.stderr.write('openjdk version "{version}"')""")

    found, home = java(), java_home()
    call = ["/bin/sh", str(home / "bin" / "java"), "-ea", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    told = subprocess.run(call, capture_output=True, text=True, check=True).stdout

    assert found == packaged
    assert told == "-ea -cp a b Main\n"


# --- jars ---------------------------------------------------------------------------------------------------------

MVN = """
    import os, pathlib, sys, time
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\\n")
    pathlib.Path("libs").mkdir()
    pathlib.Path("libs", "kafka.jar").touch()
    sys.exit(int(os.environ.get("MVN_CODE", "0")))
"""


def test_jars_are_fetched_once_even_by_several_at_a_time(commands, cache, tmp_path, monkeypatch):
    commands("mvn", MVN)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    found: list[Path] = []

    threads = [threading.Thread(target=lambda: found.append(jars.jars("4.3.1"))) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert len(set(found)) == 1
    assert [one.name for one in found[0].iterdir()] == ["kafka.jar"]
    assert found[0].parent == cache / "kafka"
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert "-Dkafka.version=4.3.1" in call
    assert "-P tools" in call


def test_half_of_the_jars_are_none(commands, cache, tmp_path, monkeypatch):
    commands("mvn", MVN)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("MVN_CODE", "1")

    with pytest.raises(DevFailure, match=r"settings\.xml"):
        jars.jars("2.8.2")

    assert [one.name for one in (cache / "kafka").iterdir()] == ["2.8.2.lock"]
    monkeypatch.setenv("MVN_CODE", "0")
    assert jars.jars("2.8.2").is_dir()
    assert "-P tools" not in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("version", ["4", "4.3", "latest", "4.3.1; rm -rf", "../../4.3.1"])
def test_a_version_is_three_numbers(cache, version):
    with pytest.raises(DevFailure, match="is not a version"):
        jars.jars(version)


# --- settings -----------------------------------------------------------------------------------------------------


def test_settings_reach_the_image_as_variables():
    assert kafka_settings.environment({"a.b_c-d": "1"}) == {"KAFKA_A_B__C___D": "1"}


def test_a_container_listens_everywhere_inside_and_tells_clients_the_loopback():
    found = by_docker.image_settings(Wanted(settings={"group.share.max.size": "7"}), 9555)

    assert found["KAFKA_LISTENERS"] == "PLAINTEXT://0.0.0.0:9555,CONTROLLER://127.0.0.1:9093"
    assert found["KAFKA_CONTROLLER_QUORUM_VOTERS"] == "1@127.0.0.1:9093"
    assert found["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://127.0.0.1:9555"
    assert found["KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR"] == "1"
    assert found["KAFKA_GROUP_SHARE_MAX_SIZE"] == "7"


def test_a_container_that_listens_at_the_controllers_usual_port_has_its_controller_at_another():
    found = by_docker.image_settings(Wanted(), 9093)

    assert found["KAFKA_LISTENERS"] == "PLAINTEXT://0.0.0.0:9093,CONTROLLER://127.0.0.1:9094"


def test_what_share_groups_need_is_not_asked_of_a_kafka_without_them():
    assert not any("share" in key for key in kafka_settings.common("3.9.1", {}))
    assert any("share" in key for key in kafka_settings.common("4.2.0", {}))


# --- ports and answers --------------------------------------------------------------------------------------------


def test_free_ports_differ_and_are_free():
    ports = free_ports(5)

    assert len(set(ports)) == 5
    assert all(is_free(port) for port in ports)


def test_who_does_not_speak_kafka_is_no_broker():
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert nodes_seen(*server.getsockname()) == 0
        thread.join()


def test_a_port_in_use_is_refused(commands):
    with socket.create_server((HOST, 0)) as server, pytest.raises(DevFailure, match="is in use"):
        by_jars.start(Wanted(port=server.getsockname()[1]), tied=True)


# --- docker -------------------------------------------------------------------------------------------------------

DOCKER = """
    import os, pathlib, subprocess, sys
    calls = pathlib.Path(os.environ["CALLS"])
    with calls.open("a") as file:
        file.write(" ".join(sys.argv[1:]) + "\\n")
    what, pid = sys.argv[1], calls.with_name("pid")
    if what == "version":
        print(os.environ["ENGINE"])
        sys.exit(0 if os.environ["ENGINE"] else 1)
    if what == "context":
        print(os.environ["ENGINE_AT"])
    if what == "run" and "RUN_FAILS" in os.environ:
        print("0123456789abcdef")
        sys.exit(os.environ["RUN_FAILS"])
    if what == "run":
        port = sys.argv[sys.argv.index("--publish") + 1].split(":")[1]
        broker = [sys.executable, os.environ["FAKE_BROKER"], port]
        pid.write_text(str(subprocess.Popen(broker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid))
        print("Pulling from apache/kafka")
        print("0123456789abcdef")
    if what == "inspect":
        print("true" if pid.exists() else "false")
    if what == "rm" and pid.exists():
        os.kill(int(pid.read_text()), 9)
        pid.unlink()
"""

FAKE_BROKER = """
import socket, struct, sys

def answer(peer):
    (size,) = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))
    key, _, correlation = struct.unpack_from(">hhi", peer.recv(size, socket.MSG_WAITALL))
    body = struct.pack(">hi", 0, 0) if key == 18 else struct.pack(">i", 1)
    peer.sendall(struct.pack(">ii", 4 + len(body), correlation) + body)

with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        peer, _ = server.accept()
        with peer:
            try:
                answer(peer), answer(peer)
            except (struct.error, OSError):
                pass
"""


@pytest.fixture
def docker(commands, tmp_path, monkeypatch):
    """A docker command whose containers are the fake broker above; gives the file with its calls."""
    commands("docker", DOCKER)
    (tmp_path / "broker.py").write_text(FAKE_BROKER)
    monkeypatch.setenv("FAKE_BROKER", str(tmp_path / "broker.py"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("ENGINE", "28.0.1")
    monkeypatch.setenv("ENGINE_AT", "unix:///var/run/docker.sock")
    return tmp_path / "calls"


def test_a_command_without_an_engine_is_no_docker(docker, monkeypatch):
    assert by_docker.engine_runs()
    monkeypatch.setenv("ENGINE", "")
    assert not by_docker.engine_runs()
    with pytest.raises(DevFailure, match="no Docker engine answers"):
        start(Wanted(), tied=False, how="docker")


def test_an_engine_that_runs_is_taken_and_its_container_removed_at_the_end(docker):
    broker = start(Wanted(version="4.3.1"), tied=False)
    restored = DevBroker.from_json(broker.as_json())

    assert broker.container == "0123456789abcdef"
    assert broker.answers
    assert restored.runs
    restored.end()
    assert not broker.answers
    calls = docker.read_text().splitlines()
    (run,) = [call for call in calls if call.startswith("run")]
    assert run.endswith("apache/kafka:4.3.1")
    assert calls[-1] == "rm --force --volumes 0123456789abcdef"


def test_a_container_that_was_made_and_cannot_start_is_removed(docker, monkeypatch):
    monkeypatch.setenv("RUN_FAILS", "Bind for 127.0.0.1 failed: port is already allocated")

    with pytest.raises(DevFailure, match="port is already allocated"):
        start(Wanted(), tied=False)

    run, last = [call.split() for call in docker.read_text().splitlines()][-2:]
    assert last == ["rm", "--force", "--volumes", run[run.index("--name") + 1]]


@pytest.mark.parametrize("address", ["tcp://build.example:2375", "ssh://me@build.example"])
def test_an_engine_on_another_machine_is_not_taken(docker, monkeypatch, address):
    monkeypatch.setenv("ENGINE_AT", address)

    assert not by_docker.engine_runs()
    with pytest.raises(DevFailure, match=address):
        start(Wanted(), tied=False, how="docker")


@pytest.mark.parametrize("address", ["", "npipe:////./pipe/docker_engine", "tcp://localhost:2375", "tcp://[::1]:2375"])
def test_an_engine_of_this_machine_is_taken_however_it_is_reached(docker, monkeypatch, address):
    monkeypatch.setenv("ENGINE_AT", address)

    assert by_docker.engine_runs()


@pytest.mark.parametrize("wanted", [Wanted(nodes=2), Wanted(data=Path("/data")), Wanted(version="3.6.2")])
def test_what_the_image_cannot_do_is_left_to_jars(wanted):
    assert by_docker.can(Wanted())
    assert not by_docker.can(wanted)


def test_a_machine_with_neither_says_what_to_install(commands):
    assert "docker" not in os.listdir(os.environ["PATH"])
    with pytest.raises(DevFailure, match="install openjdk-17"):
        start(Wanted(), tied=False)
