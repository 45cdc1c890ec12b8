"""Who may ask a page: hosts, origins, tokens."""

from __future__ import annotations

import logging

import pytest

from flowshare.agents.pages.gate import (
    BadPages,
    Gate,
    Named,
    Need,
    RequestHead,
    numbers,
    read_host,
    read_hosts,
    read_listed,
    read_token,
)

TOKEN = "a-token-of-24-characters"
HERE, POD = "127.0.0.1", "10.1.2.3"


def gate(*listed, bind="0.0.0.0", token=TOKEN, **options):
    token = None if token is None else token.encode()
    return Gate(read_hosts(listed, {}), bind=bind, machine="shop-7f9c.example", token=token, **options)


def asked(host="localhost:8081", *, peer=HERE, method="GET", **more):
    return RequestHead(method=method, hosts=() if host is None else (host,), peer=peer, **more)


def status(found, request, need=Need.HOST):
    return found.judge(request, need).status


@pytest.mark.parametrize(
    ("text", "name", "port"),
    [
        ("shop", "shop", None),
        ("SHOP.Example.:8081", "shop.example", 8081),
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("[::1]:8081", "::1", 8081),
        ("[0:0:0:0:0:0:0:1]", "::1", None),
        ("[::ffff:127.0.0.1]:1", "127.0.0.1", 1),
        ("shop:", "shop", None),
    ],
)
def test_a_host_is_read_as_a_browser_may_write_it(text, name, port):
    assert read_host(text) == Named(name, port)


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "a b", "me@shop", "shop/x", "shop,evil", "::1", "[::1", "[shop]", "[fe80::1%eth0]", "[::1]x", "a:b"),
        *("shop:99999", "shop:-1", "shop:٣", "shop..", "x" * 300, "ſhop", "shop\x00"),
    ],
)
def test_what_cannot_be_a_host_is_none(text):
    assert read_host(text) is None


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:8081", "127.0.0.1:8081", "127.8.8.8", "[::1]:8081", "0.0.0.0"]
)
def test_this_machines_names_for_itself_are_ours_only_to_who_comes_from_it(host):
    assert status(gate(), asked(host)) == 200
    assert status(gate(), asked(host, peer="::ffff:127.0.0.1")) == 200
    assert status(gate(), asked(host, peer=POD)) == 421
    assert status(gate(), asked(host, peer="")) == 421, "an address that is not known is nobody's"


def test_the_machines_name_the_bound_address_and_listed_hosts_are_ours():
    found = gate("shop.prod.svc", "metrics.example:9000", "10.0.0.7", bind="10.0.0.5")

    for host in ("shop-7f9c.example:8081", "shop-7f9c", "10.0.0.5:8081", "shop.prod.svc", "10.0.0.7:1"):
        assert status(found, asked(host, peer=POD)) == 200, host
    assert status(found, asked("metrics.example:9000", peer=POD)) == 200
    assert status(found, asked("metrics.example:9001", peer=POD)) == 421
    assert status(gate("localhost"), asked("localhost", peer=POD)) == 200, "listed: a published port of a container"


@pytest.mark.parametrize(
    "host", ["evil.example:8081", "127.0.0.1.evil.example", "localhost.evil", "10.9.9.9:8081", None]
)
def test_a_foreign_host_is_refused_but_for_probes_and_the_operator(host):
    verdict = gate().judge(asked(host), Need.HOST)

    assert verdict.status == 421
    assert "--web-host" in verdict.why
    probe = gate().judge(asked(host, peer=POD), Need.NOTHING)
    assert (probe.status, probe.trusted) == (200, False)
    assert status(gate(), asked(host, credentials=(f"Bearer {TOKEN}",))) == 200
    assert status(gate(), asked(host, own_user=True)) == 200


def test_a_request_with_several_hosts_or_origins_is_refused():
    twice = RequestHead(method="GET", hosts=("localhost", "localhost"), peer=HERE)

    assert status(gate(), twice, Need.NOTHING) == 400
    assert status(gate(), asked(origins=("http://localhost:8081",) * 2)) == 400


@pytest.mark.parametrize("need", list(Need))
@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "", "http://localhost:3000", "https://localhost:8081", "http://localhost"),
        *("http://127.0.0.1:8081", "file://", "http://localhost:8081.evil.example", "chrome-extension://abc"),
    ],
)
def test_a_foreign_origin_is_refused_everywhere_and_to_everybody(origin, need):
    for more in ({}, {"credentials": (f"Bearer {TOKEN}",)}, {"own_user": True}):
        verdict = gate().judge(asked(origins=(origin,), **more), need)
        assert (verdict.status, "Origin" in verdict.why) == (403, True)


def test_a_rebound_name_is_not_its_own_origin():
    rebound = asked("evil.example:8081", origins=("http://evil.example:8081",))

    assert status(gate(), rebound, Need.NOTHING) == 403


def test_an_origin_is_our_own_by_scheme_host_and_port():
    assert status(gate(), asked(origins=("http://localhost:8081",))) == 200
    assert status(gate(), asked("LOCALHOST:8081", origins=("http://localhost:8081",))) == 200
    assert status(gate(), asked("localhost", origins=("http://localhost:80",))) == 200
    assert status(gate(scheme="https"), asked("localhost", origins=("https://localhost",))) == 200
    assert status(gate(scheme="https"), asked("localhost", origins=("http://localhost",))) == 403


def test_behind_a_proxy_with_tls_the_listed_origin_is_our_own():
    found = gate("https://pages.example.com")

    assert status(found, asked("pages.example.com", peer=POD, origins=("https://pages.example.com",))) == 200
    assert status(found, asked("pages.example.com", peer=POD, origins=("https://pages.example.com:444",))) == 403
    assert status(found, asked("localhost:1", origins=("https://pages.example.com",))) == 403


def test_an_app_that_shares_its_pages_with_an_origin_says_which():
    found = gate(origins=["https://front.example"], strict=False)
    front = asked(origins=("https://front.example",), method="POST", fetch_site="cross-site")

    assert status(found, front) == 200
    assert status(found, asked(origins=("https://evil.example",), method="POST", fetch_site="cross-site")) == 403
    assert status(gate(origins=["*"], strict=False), asked(origins=("https://any.example",))) == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_changes_nothing_even_without_an_origin(site):
    for strict in (True, False):
        found = gate(strict=strict)
        assert status(found, asked(method="POST", fetch_site=site, fetch_mode="navigate")) == 403
        assert status(found, asked(fetch_site=site, fetch_mode="navigate")) == 200, "a link to a page"
    assert status(gate(), asked(fetch_site=site, fetch_mode="no-cors")) == 403, "an <img> makes us work"
    assert status(gate(strict=False), asked(fetch_site=site, fetch_mode="no-cors")) == 200, "an app's own picture"
    assert status(gate(), asked(method="POST", fetch_site="same-origin")) == 200


def test_orders_are_the_operators():
    order = gate().judge(asked(method="POST"), Need.OPERATOR)

    assert order.status == 403
    assert "FLOWSHARE_WEB_TOKEN" in order.why
    assert status(gate(), asked(method="POST", own_user=True), Need.OPERATOR) == 200
    assert status(gate(), asked(method="POST", credentials=(f"bearer {TOKEN}",), peer=POD), Need.OPERATOR) == 200


@pytest.mark.parametrize(
    "credentials",
    [
        ("Bearer wrong",),
        ("Bearer ",),
        (f"Bearer {TOKEN}x",),
        (f"Bearer {TOKEN}", f"Bearer {TOKEN}"),
        ("Bearer \udcff",),
    ],
)
def test_a_wrong_token_is_said_to_be_wrong(credentials):
    verdict = gate().judge(asked(credentials=credentials), Need.HOST)

    assert (verdict.status, verdict.operator) == (401, False)
    assert TOKEN not in verdict.why


def test_pages_without_a_token_know_no_operator_by_one():
    verdict = gate(token=None).judge(asked(credentials=("Bearer ",)), Need.HOST)

    assert verdict.status == 401
    assert "have no token" in verdict.why


def test_an_apps_own_use_of_the_authorization_header_is_its_own():
    verdict = gate(strict=False).judge(asked(credentials=("Bearer of-the-app",)), Need.HOST)

    assert (verdict.status, verdict.operator) == (200, False)
    assert status(gate(), asked(credentials=("Basic eDp5",))) == 200


@pytest.mark.parametrize("text", ["", "shop/x", "ftp://shop", "http://", "*", "[::1", "a b"])
def test_a_listed_host_that_is_none_is_refused_with_what_to_write(text):
    with pytest.raises(BadPages, match=r"pages\.example\.com"):
        read_listed(text)


def test_hosts_come_from_the_options_and_the_environment():
    found = read_hosts(["a", "::1"], {"FLOWSHARE_WEB_HOSTS": "b, C:1 https://d/"})

    assert found == (Named("a"), Named("::1"), Named("b"), Named("c", 1), Named("d", None, "https"))


def test_a_token_comes_from_a_file_or_the_environment(tmp_path, caplog):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nmore\n")
    file.chmod(0o600)

    assert read_token(environment={}) is None
    assert read_token(environment={"FLOWSHARE_WEB_TOKEN": TOKEN}) == TOKEN.encode()
    assert read_token(environment={"FLOWSHARE_WEB_TOKEN": "x", "FLOWSHARE_WEB_TOKEN_FILE": str(file)}) == TOKEN.encode()
    with caplog.at_level(logging.WARNING):
        assert read_token(file, {}) == TOKEN.encode()
        assert not caplog.messages
        file.chmod(0o644)
        read_token(file, {})
    assert "chmod 600" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("text", ["short", "with spaces in its middle", "ä" * 20, "x" * 5000, "\n" + TOKEN])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(tmp_path, text):
    file = tmp_path / "token"
    file.write_text(text)

    with pytest.raises(BadPages, match="urandom") as refused:
        read_token(file, {})

    assert text not in str(refused.value)
    with pytest.raises(BadPages, match="cannot be read"):
        read_token(tmp_path / "none", {})


def test_numbers_are_what_is_left_of_an_answer_without_its_texts():
    row = {
        "group": "g",
        "offset": 1,
        "rate": 0.5,
        "paused": False,
        "age": None,
        "stack": "x",
        "topics": ["a", {"t": "b", "n": 2}],
    }

    assert numbers([{**row, "state": "ready"}], frozenset({"state"})) == [
        {"offset": 1, "rate": 0.5, "paused": False, "age": None, "topics": [{"n": 2}], "state": "ready"}
    ]


def test_no_text_of_settings_shows_the_token():
    from flowshare.agents.pages.gate import PageSettings

    assert TOKEN not in repr(PageSettings(token=TOKEN.encode()))
