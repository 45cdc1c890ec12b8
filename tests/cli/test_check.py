"""`flowshare check` finds what would refuse a worker, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import UsageError
from flowshare.cli.check import _new_path, _program, examine


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


def test_the_check_of_an_app_says_that_the_name_of_its_path_is_too_long():
    app = fs.App("checked", broker=f"embedded:///tmp/{'x' * 300}")

    @app.share_agent("t")
    async def take(value: str) -> None: ...

    (error,) = [finding.text for finding in examine(app) if finding.level == "error"]

    assert error.startswith("/tmp/xxx")
    assert error.endswith("cannot be used as a storage: File name too long; name a shorter path in the broker URL")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ["python", "/bin/flowshare", "worker", "a:app", "--database", "postgres://u:s3cret@db/x"],
            "python /bin/flowshare",
        ),
        (["python", "-m", "flowshare.cli", "--token", "s3cret"], "python -m flowshare.cli"),
        (["python", "-c", "password='s3cret'"], "python"),
        (["shop", "--password", "s3cret"], "shop"),
        (["shop", "postgres://u:s3cret@db/x"], "shop"),
        (["shop", "password=s3cret"], "shop"),
        (["shop --password s3cret", ""], "shop"),
        ([""], ""),
        ([], ""),
    ],
)
def test_of_the_process_that_leads_a_path_the_program_is_told_and_no_secret(words, shown):
    assert _program(words) == shown


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


def pipelines_of(broker: str) -> fs.App:
    class Order(TypedDict):
        id: int
        counts: dict[str, int]

    app = fs.App("shop", broker=broker)
    orders = app.topic("orders", value_type=Order)

    @app.share_pipeline(orders, sink=[fs.Folder("/out/large"), "sums"], trigger="10 seconds")
    def large(orders): ...

    return app


def test_an_app_of_pipelines_is_examined_as_one_of_agents(tmp_path):
    findings = examine(pipelines_of(f"embedded://{tmp_path}/log"))

    assert [finding.text for finding in findings if finding.level == "error"] == []
    assert findings[0].text.startswith(
        "large (pipeline): topic orders · group shop.large · sink parquet in /out/large, topic sums"
    )
    (missing,) = [finding.text for finding in findings if finding.level == "warning"]
    assert missing.startswith("pipeline large: topic orders is not there")
    assert missing.endswith("flowshare topics create orders --app MODULE:APP")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            {"subscribe": "orders"},
            "'subscribe' is an option of Spark's own Kafka connector; here the first argument of "
            "@app.share_pipeline(…) names the topics",
        ),
        ({"failOnDataLoss": "false"}, 'here source={"on_data_loss": "fail"} or "continue" says it'),
        ({"groupIdPrefix": "a"}, "here group=… names the share group"),
        ({"tsks": 2}, "has no option 'tsks'. Did you mean 'tasks'?"),
        ({"records_per_trigger": 0}, "records_per_trigger takes a whole number from 1 on, not '0'"),
    ],
)
def test_an_option_of_a_pipelines_source_that_would_fail_is_found(tmp_path, source, says):
    app = fs.App("shop", broker=f"embedded://{tmp_path}/log")

    @app.share_pipeline("orders", source=source)
    def each(batch): ...

    (error,) = [finding.text for finding in examine(app) if finding.level == "error"]

    assert error.startswith("pipeline each: ")
    assert says in error


def test_a_pipeline_whose_values_are_no_columns_is_found(tmp_path):
    class Odd(TypedDict):
        what: int | str

    app = fs.App("shop", broker=f"embedded://{tmp_path}/log")

    @app.share_pipeline(app.topic("orders", value_type=Odd), sink=fs.Console())
    def each(rows): ...

    (error,) = [finding.text for finding in examine(app) if finding.level == "error"]
    assert "pipeline each: int | str is no type of a column" in error


def test_an_app_of_nothing_is_an_error(tmp_path):
    (error, *_) = examine(fs.App("shop", broker=f"embedded://{tmp_path}/log"))

    assert error.level == "error"
    assert "neither an agent nor a pipeline" in error.text
