"""The dashboard for Grafana: it has Grafana's shape, and asks for nothing that processes do not tell."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowshare.agents.pages import own_user
from tests.agents.processes import Processes
from tests.waiting import LIMIT_S, blocking_until

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana" / "flowshare.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
ASKING = [panel for panel in PANELS if panel["type"] != "row"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
ADDED = {"instance", "job"}
"""Labels that Prometheus adds."""

APP = """
import asyncio, os
import flowshare as fs

app = fs.App("shop", broker=os.environ["URL"])
orders = app.topic("orders", retention=3600.0)

@app.share_agent(orders, retry=None, max_rate=1000, breaker=fs.Breaker())
async def bill(value: int) -> None:
    if value == 1:
        raise fs.Reject("odd")
    if value == 2:
        await asyncio.Event().wait()  # so that there is a backlog

@app.cooperative_agent(orders, group="ledger")
async def book(value: int) -> None: ...
"""


def exprs(panels: list[dict[str, Any]] = ASKING) -> list[str]:
    return [target["expr"] for panel in panels for target in panel["targets"]]


def of_row(title: str) -> list[dict[str, Any]]:
    """Panels below a row, up to the next one."""
    found: list[dict[str, Any]] = []
    here = False
    for panel in PANELS:
        if panel["type"] == "row":
            here = panel["title"] == title
        elif here:
            found.append(panel)
    return found


def asked_for(expr: str) -> dict[str, set[str]]:
    """Series that an expression names, with the labels by which it selects and groups them."""
    by = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expr) for label in group.split(",")}
    found: dict[str, set[str]] = {}
    for name, selector in re.findall(r"(flowshare_\w+)(\{[^}]*\})?", expr):
        found.setdefault(name, set(by)).update(re.findall(r"(\w+)\s*=~?\"", selector))
    return found


def told_at(address: str) -> dict[str, set[str]]:
    """Series of a page of metrics, with their labels."""
    return series_of(own_user.ask(address, "/metrics", timeout_s=LIMIT_S).body.decode())


def series_of(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def missing(told: dict[str, set[str]], panels: list[dict[str, Any]]) -> list[str]:
    """Return the metrics, or labels of metrics, that panels ask for and the process does not tell."""
    found: list[str] = []
    for expr in exprs(panels):
        for name, labels in asked_for(expr).items():
            if name not in told:
                found.append(name)
            else:
                found += [f"{name} has no {label}" for label in labels - told[name] - ADDED]
    return sorted(set(found))


def test_it_has_what_grafana_wants_of_a_dashboard():
    assert (DASHBOARD["title"], DASHBOARD["uid"], DASHBOARD["id"]) == ("flowshare", "flowshare", None)
    assert DASHBOARD["schemaVersion"] >= 36
    assert {"time", "templating", "annotations", "panels", "refresh"} <= DASHBOARD.keys()
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert len({panel["title"] for panel in of_row("Leaders")}) == len(of_row("Leaders"))
    for panel in ASKING:
        assert panel["type"] in ("timeseries", "stat", "heatmap")
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == SOURCE
        assert panel["fieldConfig"].keys() >= {"defaults", "overrides"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert all(target["datasource"] == SOURCE for target in panel["targets"])


def test_its_panels_lie_side_by_side():
    places = {panel["id"]: panel["gridPos"] for panel in PANELS}

    for place in places.values():
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    for one, other in combinations(places.values(), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def test_its_variables_are_the_source_of_data_group_and_agent():
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}

    assert list(variables) == ["datasource", "group", "agent"]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    for name in ("group", "agent"):
        assert (variables[name]["type"], variables[name]["datasource"]) == ("query", SOURCE)
        assert variables[name]["definition"] == variables[name]["query"]["query"]
    used = set(re.findall(r"\$(\w+|\{\w+\})", json.dumps(PANELS)))
    assert used == {"{datasource}", "group", "agent", "__rate_interval"}


@pytest.mark.parametrize("expr", exprs())
def test_its_expressions_are_whole(expr):
    assert expr.count("(") == expr.count(")")
    assert expr.count("{") == expr.count("}")
    assert expr.count("[") == expr.count("]")
    for name in asked_for(expr):
        grows = name.endswith(("_total", "_bucket"))
        assert grows == bool(re.search(rf"(rate|increase)\({name}\b", expr)), "what only grows is asked for by its rate"


def unit(panel: dict[str, Any], target: dict[str, Any]) -> str:
    """Return the unit that a target's values are shown in."""
    found = panel["options"].get("cellValues", panel["fieldConfig"]["defaults"]).get("unit", "")
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"] == {"id": "byFrameRefID", "options": target["refId"]}:
            found = next((one["value"] for one in override["properties"] if one["id"] == "unit"), found)
    return str(found)


def test_each_value_is_shown_in_its_unit():
    for panel in ASKING:
        for target in panel["targets"]:
            expr = target["expr"]
            if "histogram_quantile(" in expr or ("_seconds" in expr and "rate(" not in expr):
                wanted = "s"
            elif "_seconds_total" in expr:
                wanted = "percentunit"  # seconds of a second
            elif "rate(" in expr or "per_second" in expr:
                wanted = "cps"
            else:
                wanted = "percentunit" if "_ratio" in expr else "short"
            assert unit(panel, target) == wanted, (panel["title"], expr)


def test_single_numbers_are_those_of_now():
    """Over a range Grafana would show the last one that there was: how old a record was that is finished by now, and
    how many were ready before all of them were gone."""
    for panel in ASKING:
        if panel["type"] == "stat":
            assert [(target["instant"], target["range"]) for target in panel["targets"]] == [(True, False)]


@pytest.mark.slow
def test_a_worker_tells_all_that_it_asks_for(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    processes = Processes(tmp_path, f"embedded://{tmp_path / 'log'}")
    worker = processes.cli("worker", "shop:app", "--drain-timeout", "0.1")
    try:
        ready = blocking_until(
            lambda: re.search(r"health and metrics at http://(\S+?)[ \n]", processes.log()), "it is ready", good=bool
        )
        address = ready[1]
        processes.send("orders", *(b"%d" % n for n in range(20)))
        blocking_until(lambda: missing(told_at(address), ASKING), "all is told", good=lambda left: left == [])
        variables = [one["definition"] for one in DASHBOARD["templating"]["list"][1:]]
        told = told_at(address)
        for text in variables:
            name, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", text).groups()
            assert label in told[name]
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(LIMIT_S)


@pytest.mark.slow
def test_a_broker_tells_all_that_is_asked_of_leaders():
    command = [sys.executable, "-m", "flowshare.cli", "serve", "--data", ":memory:", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--web-port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        try:
            assert one.stdout is not None
            assert one.stderr is not None
            one.stdout.readline()
            found = re.search(r"health and metrics at http://(\S+)", one.stderr.readline())
            assert found is not None
            with urllib.request.urlopen(f"http://{found[1]}/metrics", timeout=LIMIT_S) as answer:
                told = series_of(answer.read().decode())
        finally:
            one.kill()

    assert missing(told, of_row("Leaders")) == []
