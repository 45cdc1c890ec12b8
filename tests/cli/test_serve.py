"""`flowshare serve` as a process of its own: what it prints, refuses, and how it ends."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowshare.cli.options import MEMORY_OR_DIRECTORY
from flowshare.cli.serve import serve
from flowshare.server.standalone import Address, StandaloneError
from tests.server.wire import api_versions

START_S = 60
END_S = 30
READY = "listening on "


@contextmanager
def served(*args: str):
    """A `flowshare serve` process, ready; its address."""
    command = [sys.executable, "-m", "flowshare.cli", "serve", "--listen", "127.0.0.1:0", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            assert line.startswith(READY), process.communicate(timeout=END_S)[1]
            yield process, line.removeprefix(READY)
        finally:
            if process.poll() is None:
                process.kill()


def refused(*args: str) -> str:
    """Return the error text of a call that has to fail."""
    command = [sys.executable, "-m", "flowshare.cli", "serve", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 1, done
    assert done.stderr.count("\n") == 1
    return done.stderr


def metadata(address: str):
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=END_S)


@pytest.mark.slow
def test_a_foreign_client_finds_the_broker_and_its_topics_again_after_a_restart(tmp_path):
    from confluent_kafka.admin import AdminClient, NewTopic

    with served("--data", str(tmp_path / "log")) as (process, address):
        owner = json.loads((tmp_path / "log" / "owner.json").read_bytes())
        assert (owner["pid"], owner["listener"]) == (process.pid, address)
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(END_S)
        found = metadata(address)
        (broker,) = found.brokers.values()
        assert f"{broker.host}:{broker.port}" == address
        assert len(found.topics["orders"].partitions) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
    assert not (tmp_path / "log" / "owner.json").exists()
    with served("--data", str(tmp_path / "log")) as (process, address):
        assert len(metadata(address).topics["orders"].partitions) == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S) == 0


@pytest.mark.slow
def test_a_broker_whose_directory_is_removed_ends_with_one_sentence(tmp_path):
    with served("--data", str(tmp_path / "log"), "--log-level", "error") as (process, _):
        (tmp_path / "log").rename(tmp_path / "elsewhere")
        said = process.communicate(timeout=END_S)[1]

    assert process.returncode == 1
    assert said.splitlines()[-1].startswith(f"flowshare: {tmp_path / 'log'} was removed or replaced while this process")
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
@pytest.mark.parametrize("data", [":memory:", "memory://"])
def test_a_broker_in_memory_keeps_nothing_and_writes_nothing(tmp_path, tmp_path_factory, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    # kio's types import hypothesis where that is installed, as for these tests, and it makes a folder of its own.
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(tmp_path_factory.mktemp("hypothesis")))
    with served("--data", data) as (process, address):
        host, port = address.split(":")
        socket.create_connection((host, int(port)), timeout=END_S).close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
    assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_a_held_path_is_refused_with_its_holder(tmp_path):
    with served("--data", str(tmp_path / "log")) as (process, address):
        text = refused("--data", str(tmp_path / "log"), "--listen", "127.0.0.1:0")
        assert f"process {process.pid}" in text
        assert address in text


@pytest.mark.slow
def test_a_taken_port_is_refused_and_the_path_is_let_go(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refused("--data", str(tmp_path / "log"), "--listen", f"127.0.0.1:{port}")
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another address" in text
    assert not (tmp_path / "log" / "owner.json").exists()


@pytest.mark.slow
def test_settings_come_from_the_file_and_from_words_and_the_words_win(tmp_path):
    (tmp_path / "server.properties").write_text("max.connections=1\ngroup.share.max.size=5\n")
    args = ("--data", ":memory:", "--config", str(tmp_path / "server.properties"), "--set", "max.connections=2")
    with served(*args) as (_, address):
        host, port = address.split(":")
        first, second, third = (socket.create_connection((host, int(port)), timeout=END_S) for _ in range(3))
        assert first.recv(1) == b"", "the oldest that asked for nothing makes room"
        for held in (second, third):
            held.settimeout(0)
            with pytest.raises(BlockingIOError):
                held.recv(1)
        for held in (first, second, third):
            held.close()


@pytest.mark.slow
def test_tls_is_spoken_by_the_process(tmp_path):
    import ssl

    import trustme

    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with served("--data", ":memory:", "--tls-cert", str(tmp_path / "server.pem")) as (_, address):
        host, port = address.split(":")
        with (
            socket.create_connection((host, int(port)), timeout=END_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            secured.sendall(api_versions(3, correlation_id=11))
            assert secured.recv(8)[4:] == struct.pack(">i", 11)


def told(*args: str) -> str:
    """Return the error text of a refused call, run without a process."""
    gc.unfreeze()  # by a source of another test: its count falls with each object that ends
    result = CliRunner().invoke(serve, ["--data", ":memory:", *args])
    assert gc.get_freeze_count() == 0, "the interpreter's settings are left as they were"
    assert result.exit_code != 0
    return str(result.exception) if not isinstance(result.exception, SystemExit) else result.output


@pytest.mark.parametrize(
    ("data", "instead"),
    [
        *((data, ":memory: to keep nothing") for data in ("memory:", ":memory", "memory:/", "memory:///", ":MEMORY:")),
        ("embedded:///tmp/shop", "the path alone, /tmp/shop"),
        ("file:///tmp/shop", "the path alone, /tmp/shop"),
        ("embedded://", "the path of a directory"),
        ("kafka://localhost:9092", "the path of a directory"),
    ],
)
def test_a_url_in_place_of_a_directory_is_refused_and_nothing_is_made(tmp_path, monkeypatch, data, instead):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(serve, ["--data", data, "--listen", "nowhere"])
    assert f" is no directory; write {instead}, or ./ before it if it is the name of one" in done.output
    assert f"'{data.partition('//')[0]}" in done.output
    assert not (tmp_path / data.partition("/")[0]).exists()


@pytest.mark.parametrize(
    ("data", "kept"),
    [(":memory:", None), ("memory://", None), ("./:memory:", Path(":memory:")), ("/d", Path("/d"))],
)
def test_nothing_is_kept_by_a_value_that_no_click_takes_for_a_missing_option(data, kept, monkeypatch):
    async def served(options, _pages):
        assert options.data == kept

    monkeypatch.setattr("flowshare.cli.serve._serve", served)

    assert MEMORY_OR_DIRECTORY.convert(data, None, None) is not None
    done = CliRunner().invoke(serve, ["--data", data, "--listen", "127.0.0.1:0"], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("data", "instead"),
    [
        ("kafka://me:s3cret@host:9092", "the path of a directory"),
        ("embedded:///tmp/shop?password=s3cret", "the path alone, /tmp/shop"),
        ("embedded://me:s3cret@host/tmp", "the path of a directory"),
    ],
)
def test_the_refusal_of_a_url_repeats_no_password_of_it(data, instead):
    done = CliRunner().invoke(serve, ["--data", data])

    assert f"'{data.partition(':')[0]}://…' is no directory; write {instead}, or" in done.output
    assert "s3cret" not in done.output


@pytest.mark.parametrize("data", ["memory", "./memory:", "2026-11-29T10:00", "a:b"])
def test_a_path_with_a_colon_is_a_path(data):
    assert MEMORY_OR_DIRECTORY.convert(data, None, None) == Path(data)


OPEN = (
    (("--listen", "192.0.2.1:0"), "192.0.2.1:0 can be reached from other machines: add TLS"),
    (("--listen", "0.0.0.0:9092"), "name the address they are to use with --advertise"),
    (("--listen", "0.0.0.0:9092", "--advertise", "broker:9092"), "add TLS .--tls-cert., logins .--sasl-users., ACLs"),
    (("--listen", "9092"), "'9092' is no address; write host:port"),
    (("--listen", "::1:9092"), "is no address"),
    (("--listen", "127.0.0.1:99999"), "is no address"),
    (("--listen", "127.0.0.1:0", "--super-user", "User:root"), "--super-user goes with --acls"),
    (("--set", "max.conections=1"), "did you mean max.connections?"),
    (("--set", "max.connections"), "write name=value"),
    (("--tls-key", __file__), "need the server's certificate: --tls-cert"),
    (("--tls-cert", __file__, "--tls-client-auth", "required"), "no CA file says whose are trusted"),
    (("--sasl-users", __file__), "line 1"),
    (("--acls", __file__), "line 1"),
)


@pytest.mark.parametrize(("args", "text"), OPEN)
def test_a_call_that_cannot_work_is_refused_in_one_sentence(args, text):
    import re

    assert re.search(text, told(*args))


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092, True),
        ("localhost:0", "localhost", 0, True),
        ("[::1]:65535", "::1", 65535, True),
        ("broker.example:1", "broker.example", 1, False),
        ("10.0.0.1:9092", "10.0.0.1", 9092, False),
        (":9092", "", 9092, False),
    ],
)
def test_addresses_are_read_and_written(text, host, port, loopback):
    address = Address.parse(text)
    assert (address.host, address.port, address.loopback) == (host, port, loopback)
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:-1", "host:٣", "::1:1", "host:65536"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(StandaloneError, match="write host:port"):
        Address.parse(text)


@pytest.mark.slow
def test_with_few_descriptors_connections_are_fewer_and_the_store_has_all_that_it_needs(tmp_path):
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    few = 160
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({few}, {few}));"
        "from flowshare.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip().removeprefix(READY)
            admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
            admin.create_topics([NewTopic("t", 1, 1)])["t"].result(timeout=END_S)
            host, _, port = address.rpartition(":")
            lines = [socket.create_connection((host, int(port)), END_S) for _ in range(150)]
            told: list[object] = []
            producer = Producer({"bootstrap.servers": address, "log_level": 0, "message.max.bytes": 2_000_000})
            for line in lines[:100]:
                line.close()
            for _ in range(100):
                producer.produce("t", bytes(900_000), on_delivery=lambda error, _: told.append(error))
                producer.flush(END_S)
            assert told == [None] * 100
            for line in lines:
                line.close()
        finally:
            process.kill()
        said = process.communicate(timeout=END_S)[1]
    assert "max.connections is 80 and not 2000: the process may have 160 descriptors open" in said
    assert "Too many open files" not in said
