"""An application that sets logging up itself: its handlers work, and flowshare's lines stay."""

from __future__ import annotations

import json
import logging
import logging.config
import sys

import pytest

from flowshare.cli import logs


@pytest.fixture(autouse=True)
def put_back():
    """Put the handlers back afterwards; what tests of all kinds leave is put back by `conftest`."""
    root, last = logging.getLogger(), logging.lastResort
    handlers = root.handlers[:]
    yield
    for handler in root.handlers:
        if handler not in handlers and isinstance(handler, logging.FileHandler):
            handler.close()
    root.handlers[:], logging.lastResort = handlers, last


def told() -> logging.Logger:
    return logging.getLogger("flowshare.worker")


def test_lines_are_there_before_the_application_is_loaded_and_after(capsys):
    logs.set_up(for_app=True)
    told().info("loads")
    logs.settle()
    logs.settle()
    told().info("loaded")
    err = capsys.readouterr().err

    assert [line.split(": ")[1] for line in err.splitlines()] == ["loads", "loaded"]


def test_a_basic_config_with_a_file_works_and_the_lines_go_on_to_stderr_too(capsys, tmp_path):
    logs.set_up(for_app=True)
    logging.basicConfig(filename=tmp_path / "shop.log", format="%(name)s %(message)s")
    logs.settle()
    told().info("ready")
    logging.getLogger("shop").warning("low")
    err = capsys.readouterr().err

    assert (tmp_path / "shop.log").read_text() == "flowshare.worker ready\nshop low\n"
    assert "flowshare.worker: ready" in err
    assert "shop: low" in err


def test_a_dict_config_that_names_no_logger_of_flowshare_mutes_none(capsys):
    logs.set_up(for_app=True)
    told().info("before")
    logging.config.dictConfig(
        {
            "version": 1,
            "formatters": {"mine": {"format": "mine %(name)s %(message)s"}},
            "handlers": {"out": {"class": "logging.StreamHandler", "stream": sys.stderr, "formatter": "mine"}},
            "root": {"level": "ERROR", "handlers": ["out"]},
        }
    )
    assert told().disabled
    logs.settle()
    told().info("ready")
    err = capsys.readouterr().err

    assert err.splitlines()[1:] == ["mine flowshare.worker ready"]


def test_a_level_that_is_given_to_flowshare_is_kept(capsys):
    logs.set_up(for_app=True)
    logging.config.dictConfig({"version": 1, "loggers": {"flowshare": {"level": "ERROR"}}})
    logs.settle()
    told().warning("hush")
    told().error("heard")
    err = capsys.readouterr().err

    assert "hush" not in err
    assert "flowshare.worker: heard" in err


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_warning_of_the_root_logger_while_the_application_is_loaded_leaves_flowshares_format(capsys, form):
    logs.set_up(form=form, for_app=True)
    logging.warning("a module of the application says so")  # noqa: LOG015 - as it is done
    logs.settle()
    capsys.readouterr()
    told().info("ready")
    logging.info("shown")  # noqa: LOG015
    err = capsys.readouterr().err.splitlines()

    assert len(err) == 2
    if form == "json":
        assert [json.loads(line)["message"] for line in err] == ["ready", "shown"]
    else:
        assert [line.split(maxsplit=1)[1] for line in err] == [
            "INFO    flowshare.worker: ready",
            "INFO    root: shown",
        ]


def test_a_format_that_a_basic_config_names_is_kept(capsys):
    logs.set_up(form="json", for_app=True)
    logging.basicConfig(format="mine %(message)s")
    logs.settle()
    told().info("ready")

    assert capsys.readouterr().err == "mine ready\n"


def test_a_basic_config_when_the_application_starts_works_and_the_lines_stay(capsys, tmp_path):
    logs.set_up(for_app=True)
    logs.settle(for_start=True)
    told().info("loaded")
    logging.basicConfig(filename=tmp_path / "shop.log", format="%(name)s %(message)s")  # in `on_start`
    logs.settle()
    told().info("ready")

    assert (tmp_path / "shop.log").read_text() == "flowshare.worker ready\n"
    assert [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()] == ["loaded", "ready"]


def test_what_is_set_up_at_import_has_the_lines_from_then_on_and_not_only_from_the_start(capsys, tmp_path):
    logs.set_up(for_app=True)
    logging.config.dictConfig({"version": 1})
    logging.basicConfig(filename=tmp_path / "shop.log", format="%(message)s")
    logs.settle(for_start=True)
    told().info("loaded")

    assert (tmp_path / "shop.log").read_text() == "loaded\n"
    assert "flowshare.worker: loaded" in capsys.readouterr().err
