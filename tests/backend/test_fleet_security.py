"""Tests of a fleet's listener settings, from the broker URL and the environment, and of settings that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowshare.backend import fleet_options
from flowshare.backend.base import BackendError
from flowshare.backend.fleet import WorkersBackend
from flowshare.backend.fleet_options import FleetPlace, FleetSecurity
from flowshare.backend.url import BadBrokerUrl, parse_broker
from flowshare.client.net.security import Security
from flowshare.clock import LoopClock

PASSWORD = {"FLOWSHARE_FLEET_PASSWORD": "top secret"}
LOGIN = Security(protocol="SASL_SSL", username="alice", password="x")


def read(query: str = "", **environment: str) -> FleetSecurity:
    """The security that a URL with these options says."""
    return FleetSecurity.of(parse_broker(f"kafka://a:1?share=workers&{query}"), environment)


def test_nothing_is_on_unless_it_is_asked_for() -> None:
    secured = read()

    assert (secured.tls, secured.users_file, secured.acl_file, secured.super_users) == (None, None, None, ())
    assert secured.own == Security()


def test_who_listens_with_logins_reaches_others_by_the_fleets_user_who_may_do_everything() -> None:
    secured = read("listen_tls_cert=c.pem&listen_tls_ca=ca.pem&listen_sasl_users=users&fleet_user=shop", **PASSWORD)

    assert secured.own == Security(
        protocol="SASL_SSL",
        username="shop",
        password="top secret",
        ca_file=Path("ca.pem"),
        certificate_file=Path("c.pem"),
    )
    assert secured.super_users == ("User:shop",)
    assert "top secret" not in repr(secured)


def test_a_command_needs_the_fleets_ca_and_user_only() -> None:
    secured = read("fleet_ca_file=ca.pem&fleet_user=shop&fleet_sasl_mechanism=plain", **PASSWORD)

    assert secured.tls is None
    assert (secured.own.protocol, secured.own.mechanism) == ("SASL_SSL", "PLAIN")


def test_with_client_certificates_a_worker_shows_its_own_one_to_others() -> None:
    secured = read(
        "listen_tls_cert=c.pem&listen_tls_key=k.pem&listen_tls_ca=ca.pem&listen_super_users=User:CN=a;User:b"
    )

    assert (secured.own.protocol, secured.own.certificate_file) == ("SSL", Path("c.pem"))
    assert secured.own.key_file == Path("k.pem")
    assert secured.super_users == ("User:CN=a", "User:b")


def test_the_environment_says_what_the_url_does_not() -> None:
    secured = read(
        "fleet_user=from-the-url", FLOWSHARE_FLEET_USER="other", FLOWSHARE_LISTEN_SASL_USERS="users", **PASSWORD
    )

    assert (secured.own.username, secured.users_file) == ("from-the-url", Path("users"))


def test_the_password_comes_from_a_file_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of the file\n")

    assert read(f"fleet_user=shop&fleet_password_file={file}", **PASSWORD).own.password == "of the file"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("listen_sasl_users=users", "fleet_user"),
        ("fleet_user=shop", "FLOWSHARE_FLEET_PASSWORD"),
        ("listen_tls_key=k.pem", "listen_tls_cert"),
        ("listen_tls_cert=c.pem&listen_tls_client_auth=maybe", "none, requested or required"),
        ("listen_super_users=User:a", "listen_super_users goes with"),
        ("listen_insecure=yes", "true or false"),
        ("fleet_security=SASL_SSL", "user name"),
        ("fleet_password_file=/nowhere/at/all&fleet_user=a", "password file"),
    ],
)
def test_what_makes_no_sense_is_refused_saying_what_is_missing(query: str, words: str) -> None:
    with pytest.raises(BadBrokerUrl, match=words):
        read(query)


@pytest.mark.parametrize(
    ("query", "kafka", "missing"),
    [
        ("", Security(), "asks nobody who they are: add TLS.* and logins"),
        ("", Security(protocol="SSL"), "TLS"),
        ("listen_tls_cert=c.pem", LOGIN, "logins"),
        ("", LOGIN, "TLS.* and logins"),
        ("", Security(protocol="SSL", certificate_file=Path("c.pem")), "TLS.* and logins"),
    ],
)
def test_a_listener_that_gives_away_what_the_brokers_protect_is_refused(
    query: str, kafka: Security, missing: str
) -> None:
    with pytest.raises(BackendError, match=missing):
        read(query).check("0.0.0.0", kafka)

    read(query).check("127.0.0.1", kafka)
    read(f"{query}&listen_insecure=true").check("", kafka)


def test_a_listener_that_asks_for_as_much_as_the_brokers_is_taken() -> None:
    read("listen_tls_cert=c.pem").check("", Security())
    read("listen_sasl_users=users&fleet_user=a", **PASSWORD).check("10.0.0.1", Security())
    certain = "listen_tls_cert=c.pem&listen_tls_ca=ca.pem&listen_tls_client_auth=required"
    read(certain).check("10.0.0.1", LOGIN)


@pytest.mark.asyncio
async def test_rights_are_on_as_soon_as_it_is_asked_who_somebody_is(tmp_path: Path) -> None:
    acls = tmp_path / "acls"
    acls.write_text("allow User:etl read topic orders\n")

    assert (await read().doors(LoopClock())).authorizer is None
    assert (await read(f"listen_acls={acls}").doors(LoopClock())).authorizer is not None


@pytest.mark.asyncio
@pytest.mark.parametrize("option", ["listen_tls_cert", "listen_acls"])
async def test_a_file_that_is_not_there_is_named(option: str) -> None:
    with pytest.raises(BackendError, match="/nowhere/file"):
        await read(f"{option}=/nowhere/file").doors(LoopClock())


def test_a_backend_refuses_bad_options_when_it_is_made() -> None:
    with pytest.raises(BadBrokerUrl, match="listen_tls_cert"):
        WorkersBackend(parse_broker("kafka://a:1?share=workers&listen_tls_key=k.pem"))


@pytest.mark.parametrize(
    ("hosts", "query", "listens"),
    [
        ("127.0.0.1:1", "", ("127.0.0.1", 0)),
        ("127.0.0.1:1", "listen_insecure=true", ("127.0.0.1", 0)),
        ("127.0.0.1:1", "advertise=127.0.0.2:9095", ("127.0.0.1", 0)),
        ("127.0.0.1:1", "advertise=worker-1:9095", ("", 0)),
        ("127.0.0.1:1", "listen_tls_cert=c.pem", ("", 0)),
        ("127.0.0.1:1", "listen=0.0.0.0:9095", ("0.0.0.0", 9095)),
        ("192.0.2.1:1", "", ("", 0)),
        ("192.0.2.1:1", "listen=127.0.0.1:9095", ("127.0.0.1", 9095)),
    ],
)
def test_where_nothing_is_guarded_a_worker_listens_on_the_loopback_if_its_brokers_do(
    monkeypatch: pytest.MonkeyPatch, hosts: str, query: str, listens: tuple[str, int]
) -> None:
    monkeypatch.setattr(fleet_options, "_towards", lambda brokers: "127.0.0.1" if "127" in brokers[0] else "10.0.0.7")
    broker = parse_broker(f"kafka://{hosts}?share=workers&{query}")
    place, secured = FleetPlace.of(broker, lead=True), FleetSecurity.of(broker, {})

    assert place.listens(broker.hosts, guarded=secured.guarded) == listens
    assert place.advertised_host("127.0.0.1", broker.hosts) == (place.advertise or ("127.0.0.1", 0))[0]
