"""Outcomes find their source on the driver's machine: through a socket that only its user can open."""

from __future__ import annotations

import socket
import tempfile

import pytest

from flowshare.spark.source.outcomes import OutcomeListener, OutcomesLost, ask, deliver

BROKER = "embedded:///nowhere/outcomes"


@pytest.fixture
def listen(monkeypatch, tmp_path):  # pytest has its own folder, before the temporary ones are elsewhere
    made = []

    def start(take, group="g", tell=lambda: None):
        made.append(OutcomeListener(BROKER, group, take, tell))
        return made[-1]

    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        yield start
        for one in made:
            one.close()


def test_every_source_of_the_group_is_asked_and_no_other(listen):
    listen(lambda outcomes: len(outcomes))
    listen(lambda outcomes: 10)
    listen(lambda outcomes: 1000, group="another")

    assert deliver(BROKER, "g", [(1,), (2,)]) == 12


def test_every_source_of_the_group_tells_of_itself(listen):
    before = ask(BROKER, "g")
    listen(len, tell=lambda: "one")
    listen(len, tell=lambda: "two")
    listen(len, group="another", tell=lambda: "three")

    assert before == []
    assert sorted(ask(BROKER, "g")) == ["one", "two"]


def test_without_a_source_the_error_names_the_option(listen):
    with pytest.raises(OutcomesLost, match="'outcomes', 'true'"):
        deliver(BROKER, "g", [(1,)])


def test_a_source_that_fails_loses_the_batch_and_takes_the_next(listen, caplog):
    failures = iter([ValueError("no")])

    def take(_):
        for failure in failures:
            raise failure
        return 1

    listen(take)

    with pytest.raises(OutcomesLost, match="is gone"):
        deliver(BROKER, "g", [(1,)])
    assert "outcomes were not taken" in caplog.text
    assert deliver(BROKER, "g", [(1,)]) == 1


def test_who_hangs_up_or_sends_garbage_does_not_end_it(listen):
    one = listen(lambda outcomes: 1)
    for sent in (b"", b"\0\0\0\4abcd", b"\xff" * 4096):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(one._path))
            stranger.sendall(sent)

    assert deliver(BROKER, "g", [(1,)]) == 1


def test_a_closed_source_leaves_neither_thread_nor_socket(listen):
    one = listen(lambda outcomes: 1)
    one.close()

    assert not one._thread.is_alive()
    assert not one._path.exists()
    with pytest.raises(OutcomesLost):
        deliver(BROKER, "g", [(1,)])


def test_the_socket_of_a_process_that_died_is_swept_away(listen):
    one = listen(lambda outcomes: 1)
    left = one._path.with_name("1-dead.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))

    assert deliver(BROKER, "g", [(1,)]) == 1
    assert not left.exists()


def test_temporary_folders_with_a_name_too_long_for_a_socket_are_not_used(listen, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 90)))
    listen(lambda outcomes: 1)

    assert deliver(BROKER, "g", [(1,)]) == 1
