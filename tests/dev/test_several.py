"""Several throw-away Kafkas at a time, one a port; nothing is started for them here."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowshare.cli.dev import dev
from flowshare.dev import DevFailure, broker, by_docker
from flowshare.dev.broker import DevBroker, Several, Wanted
from flowshare.dev.processes import Process

GONE = Process(1, "another birth")


@pytest.fixture(autouse=True)
def started(tmp_path, monkeypatch) -> list[Wanted]:
    """A cache directory of its own, and what was started; a broker without a process runs until it is ended."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found: list[Wanted] = []
    free = itertools.count(40_000)

    def start(wanted: Wanted, *, tied: bool, how: object) -> DevBroker:
        assert not tied
        found.append(wanted)
        address = f"127.0.0.1:{wanted.port or next(free)}"
        data = Path(wanted.data).absolute() if wanted.data is not None else None
        return DevBroker(version=wanted.version, addresses=(address,), data=data, keep=data is not None)

    monkeypatch.setattr(broker, "start", start)
    return found


def files(tmp_path) -> set[str]:
    return {file.name for file in (tmp_path / "flowshare").glob("*.json")}


def call(*args: str):
    return CliRunner().invoke(dev, list(args), standalone_mode=False)


def test_a_second_port_is_a_second_broker_and_each_is_found_again(started, tmp_path):
    first, _ = broker.up(port=9092)
    second, now = broker.up(port=9093)
    again, started_again = broker.up(port=9093)

    assert (second.port, now, again, started_again) == (9093, True, second, False)
    assert [one.port for one in started] == [9092, 9093]
    assert files(tmp_path) == {"dev-broker-9092.json", "dev-broker-9093.json"}
    assert broker.current(9092) == first
    assert broker.up() == (first, False), "without a port it is Kafka's own"


def test_port_0_is_another_broker_each_time():
    ports = {broker.up(port=0)[0].port for _ in range(3)}

    assert len(ports) == 3


def test_without_a_port_the_only_one_is_meant_and_several_are_listed():
    broker.up(port=9093)
    assert broker.up()[0].port == 9093
    broker.up(port=9094)
    for ask in (broker.current, broker.up, broker.down):
        with pytest.raises(Several) as refused:
            ask()
        assert str(refused.value) == (
            "2 brokers run: kafka://127.0.0.1:9093, kafka://127.0.0.1:9094; name one with --port"
        )

    ended = broker.down(9093)
    assert ended is not None
    assert ended.port == 9093
    assert broker.current(9093) is None
    last = broker.down()
    assert last is not None
    assert last.port == 9094
    assert broker.down() is None


def test_another_version_at_a_port_is_refused_and_at_another_port_started():
    broker.up(port=9092, version="4.3.1")
    with pytest.raises(DevFailure, match="dev down --port 9092`, or name another port with --port"):
        broker.up(port=9092, version="4.4.0")
    assert broker.up(port=9093, version="4.4.0")[1]


def test_two_brokers_do_not_share_their_data(tmp_path):
    broker.up(port=9092, data=tmp_path / "data")
    with pytest.raises(DevFailure, match=r"127\.0\.0\.1:9092 has its data in .*data: name another directory"):
        broker.up(port=9093, data=tmp_path / "data")


def test_one_that_died_stands_in_nobodys_way_and_is_removed(tmp_path):
    folder = tmp_path / "flowshare"
    folder.mkdir()
    left = DevBroker(version="4.3.1", addresses=("127.0.0.1:9092",), processes=(GONE,), data=tmp_path / "left")
    (tmp_path / "left").mkdir()
    (folder / "dev-broker-9092.json").write_text(json.dumps(left.as_json()))

    assert broker.current() == left
    broker.up(port=9093)
    assert files(tmp_path) == {"dev-broker-9093.json"}
    assert not (tmp_path / "left").exists()


def test_a_broker_whose_engine_does_not_answer_blocks_its_own_port_only(tmp_path, monkeypatch, caplog):
    def silent(_container: str) -> bool:
        raise DevFailure("docker does not answer")

    monkeypatch.setattr(by_docker, "container_runs", silent)
    folder = tmp_path / "flowshare"
    folder.mkdir()
    left = DevBroker(version="4.3.1", addresses=("127.0.0.1:9092",), container="c")
    (folder / "dev-broker-9092.json").write_text(json.dumps(left.as_json()))

    assert broker.up(port=9093)[1]
    assert "kafka://127.0.0.1:9092 is left as it is: docker does not answer" in caplog.text
    assert "dev-broker-9092.json" in files(tmp_path)
    for port in (9092, None):
        with pytest.raises(DevFailure, match="docker does not answer"):
            broker.up(port=port)


def test_the_advice_for_a_port_where_none_runs_names_the_port():
    assert call("status", "--port", "9093").output.endswith("start one with: flowshare dev up --port 9093\n")
    assert call("status").output.endswith("start one with: flowshare dev up\n")


@pytest.mark.parametrize("text", ["{", "[]", '{"version": "4.3.1"}'])
def test_a_file_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "flowshare").mkdir()
    (tmp_path / "flowshare" / "dev-broker-9092.json").write_text(text)
    with pytest.raises(DevFailure, match=r"dev-broker-9092\.json cannot be read"):
        broker.current()


def test_the_commands_take_the_port_and_list_what_runs():
    assert "dev down --port 9092" in call("up", "--port", "9092").output
    call("up", "--port", "9093")
    for command in ("status", "down"):
        refused = call(command)
        assert isinstance(refused.exception, Exception)
        assert "2 brokers run: kafka://127.0.0.1:9092, kafka://127.0.0.1:9093; name one with --port" in str(
            refused.exception
        )
    assert "no broker runs at port 1" in call("status", "--port", "1").output
    assert "ended Kafka 4.3.1 at kafka://127.0.0.1:9093" in call("down", "--port", "9093").output
    assert "no broker runs at port 9093 that" in call("down", "--port", "9093").output
