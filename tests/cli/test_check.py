"""`flowshare check` finds what would refuse a worker, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import UsageError
from flowshare.cli.check import _new_path, examine


def test_a_path_that_cannot_be_made_is_found_out_by_trying():
    (finding,) = _new_path(Path("/proc/x/log"))

    assert finding.level == "error"
    assert finding.text.startswith("/proc/x/log cannot be made in /proc: ")
    assert "change the broker URL" in finding.text


def test_a_path_that_can_be_made_is_not_made(tmp_path: Path):
    assert _new_path(tmp_path / "a" / "log")[0].level == "ok"
    assert list(tmp_path.iterdir()) == []


def test_the_check_of_an_app_says_that_its_path_cannot_be_made():
    app = fs.App("checked", broker="embedded:///proc/x")

    @app.share_agent("t")
    async def take(value: str) -> None: ...

    errors = [finding.text for finding in examine(app) if finding.level == "error"]

    assert len(errors) == 1
    assert "/proc/x cannot be made" in errors[0]


@pytest.mark.parametrize("name", ["", " ", "my app", "a/b", "ä", ".", "..", "a" * 201, "a\n", 5, None])
def test_an_apps_name_that_no_topic_can_begin_with_is_refused_as_the_apps_name(name):
    with pytest.raises(UsageError, match=r"App\(.*\): the app's name is the beginning of .* letters, digits"):
        fs.App(name, broker="memory://")


@pytest.mark.parametrize("name", ["shop", "a.b_c-1", "a" * 200])
def test_an_apps_name_of_what_topics_are_made_of_is_taken(name):
    assert fs.App(name, broker="memory://").app_id == name


@pytest.mark.parametrize("largest", [-1, 0, "1MB", True])
def test_a_largest_record_that_is_no_size_is_refused_by_the_options_name(largest):
    with pytest.raises(UsageError, match=r"App\('a'\): producer_max_request_size is a number of bytes from 1 on"):
        _ = fs.App("a", broker="memory://", producer_max_request_size=largest).producer_settings


@pytest.mark.java
@pytest.mark.slow
def test_what_only_workers_keep_is_no_error_where_share_is_to_be_chosen(kafka, unique):
    app = fs.App(unique("first"), broker=f"kafka://{kafka.bootstrap}?fleet={unique('new')}")

    @app.share_agent(unique("in"), exactly_once=True, sink=[unique("out")])
    async def keyed(value: str) -> str:
        return value

    assert [finding.text for finding in examine(app) if finding.level == "error"] == []


@pytest.mark.parametrize(
    ("allowed", "level", "says"),
    [(True, "ok", "topic t is not there yet and will be made"), (False, "error", "there is no topic 't'")],
)
def test_the_topic_of_a_cooperative_agent_is_looked_for_as_a_share_agents_is(tmp_path, allowed, level, says):
    app = fs.App("checked", broker=f"embedded://{tmp_path / 'log'}", topic_allow_declare=allowed)

    @app.cooperative_agent("t")
    async def take(value: str) -> None: ...

    assert any(one.level == level and says in one.text for one in examine(app))
