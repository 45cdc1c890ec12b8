"""The app's own pages (`@app.page`): by which hosts, for which pages in a browser, for whom."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from faust.web.views import View

import flowshare as fs
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.pages.site import OF_APPS

TOKEN = "a-token-of-24-characters"


async def nothing(value: bytes) -> None: ...


def paged(**options: Any) -> fs.App:
    app = fs.App("t", broker="memory://", **options)
    app.share_agent("in", name="agent")(nothing)

    @app.page("/hello/")
    class Hello(View):
        async def get(self, request: Any) -> Any:
            return self.json({"who": request.headers.get("Authorization", "")})

        async def post(self, request: Any) -> Any:
            return self.json({"said": (await request.read()).decode()})

    @app.page("/framed/")
    async def framed(page: Any, request: Any) -> Any:
        return page.text("x", headers={"Content-Security-Policy": "frame-ancestors *"})

    return app


def ask(app: fs.App, *requests: tuple[str, str, dict[str, str]], body: bytes | None = None) -> list[Any]:
    """Status, headers and text of each answer. A host that is said is sent as it is."""

    async def main() -> list[Any]:
        found = []
        async with app.running(), aiohttp.ClientSession() as session:
            for method, path, headers in requests:
                url = f"http://127.0.0.1:{app.conf.web_port}{path}"
                async with session.request(method, url, headers=headers, data=body) as answer:
                    found.append((answer.status, dict(answer.headers), await answer.text()))
        return found

    return asyncio.run(main())


def statuses(app: fs.App, *requests: tuple[str, str, dict[str, str]], body: bytes | None = None) -> list[int]:
    return [status for status, _, _ in ask(app, *requests, body=body)]


@pytest.mark.slow
def test_a_foreign_host_and_a_foreign_origin_get_nothing_from_the_apps_pages():
    refused = [
        ("GET", "/hello/", {"Host": "evil.example"}),
        ("GET", "/", {"Host": "evil.example:6066"}),
        ("GET", "/hello/", {"Origin": "http://evil.example"}),
        ("POST", "/hello/", {"Origin": "null"}),
        ("POST", "/hello/", {"Sec-Fetch-Site": "cross-site"}),
        ("OPTIONS", "/hello/", {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}),
    ]

    assert statuses(paged(), *refused) == [421, 421, 403, 403, 403, 403]


@pytest.mark.slow
def test_listed_hosts_and_an_apps_own_tokens_and_bodies_get_through(monkeypatch):
    app = paged(web_hosts=["shop.example.com", "https://front.example.com"])
    behind_a_proxy = {"Host": "front.example.com", "Origin": "https://front.example.com"}

    found = ask(
        app,
        ("GET", "/hello/", {"Host": "shop.example.com:6066"}),
        ("GET", "/hello/", {"Authorization": "Bearer of-the-app"}),
        ("POST", "/hello/", behind_a_proxy),
        body=b"x" * 100_000,
    )

    assert [status for status, _, _ in found] == [200, 200, 200]
    assert "of-the-app" in found[1][2]
    assert "xxx" in found[2][2]


@pytest.mark.slow
def test_an_origin_that_the_app_shares_its_pages_with_gets_through():
    from faust.types.web import ResourceOptions

    app = paged(web_cors_options={"http://front.example": ResourceOptions(allow_credentials=True)})

    found = ask(
        app,
        ("GET", "/hello/", {"Origin": "http://front.example", "Sec-Fetch-Site": "cross-site"}),
        ("GET", "/hello/", {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}),
    )

    assert [status for status, _, _ in found] == [200, 403]
    assert found[0][1]["Access-Control-Allow-Origin"] == "http://front.example"


@pytest.mark.slow
def test_fausts_own_pages_tell_tables_to_the_operator_only(monkeypatch):
    monkeypatch.setenv("FLOWSHARE_WEB_TOKEN", TOKEN)
    token = {"Authorization": f"Bearer {TOKEN}"}
    builtin = ("/table/", "/router/", "/graph/", "/assignment/")

    foreign = [("GET", path, {}) for path in (*builtin, "/")]
    found = statuses(paged(debug=True), *foreign, ("GET", "/table/", token), ("GET", "/hello/", {}))
    assert found == [403] * 5 + [200, 200]
    assert statuses(paged(), ("GET", "/", {})) == [200], "the index of a production says OK and nothing else"


@pytest.mark.slow
def test_the_apps_pages_have_headers_which_a_page_may_replace():
    [(_, said, _), (_, framed, _), (_, missing, _), (_, refused, _)] = ask(
        paged(),
        ("GET", "/hello/", {}),
        ("GET", "/framed/", {}),
        ("GET", "/none/", {}),
        ("GET", "/hello/", {"Host": "evil.example"}),
    )

    for headers in (said, missing, refused):
        assert OF_APPS.items() <= headers.items()
    assert framed["Content-Security-Policy"] == "frame-ancestors *"


def test_a_host_that_is_none_is_refused_at_import():
    with pytest.raises(UsageError, match=r"App\('t'\): web_hosts: 'shop/x' is no host"):
        fs.App("t", broker="memory://", web_hosts=["shop/x"])


@pytest.mark.slow
def test_a_token_that_can_be_guessed_stops_the_start(monkeypatch):
    monkeypatch.setenv("FLOWSHARE_WEB_TOKEN", "short")

    with pytest.raises(UsageError, match="16 to 4096"):
        ask(paged())
