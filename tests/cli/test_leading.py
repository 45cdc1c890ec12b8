"""Commands about the groups of a fleet of which no worker runs."""

from __future__ import annotations

import pytest

from flowshare.backend.url import parse_broker
from flowshare.cli import main
from flowshare.cli.leading import led_here


def test_a_command_leads_on_this_machine_only_and_with_the_slots_that_the_fleet_has() -> None:
    url = parse_broker("kafka://a:1?share=auto&fleet=shop&listen=0.0.0.0:9095&advertise=w:9095&state_dir=/x&slots=7")

    led = led_here(url, 4)

    assert led.options == {"share": "workers", "fleet": "shop", "listen": "127.0.0.1:0", "slots": "4"}
    assert led_here(url, 0).options["slots"] == "7"


def test_it_keeps_the_listeners_security_and_without_one_needs_none() -> None:
    secured = "listen_tls_cert=c.pem&listen_sasl_users=u&fleet_user=shop"
    url = parse_broker(f"kafka://a:1?share=workers&{secured}")
    assert led_here(url, 0).options.items() >= {"listen_tls_cert": "c.pem", "fleet_check_hostname": "false"}.items()

    command = parse_broker("kafka://a:1?share=workers&fleet_user=shop&fleet_ca_file=ca.pem")
    assert led_here(command, 0).options == {"share": "workers", "listen": "127.0.0.1:0"}


@pytest.mark.java
def test_groups_are_looked_after_while_no_worker_runs(kafka, unique, capsys) -> None:
    url = f"kafka://{kafka.addresses[0]}?share=workers&slots=2&fleet={unique('shop')}"

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([*words, "--broker", url])
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    code, _, err = run("groups", "ls")
    assert (code, "has no state" in err) == (1, True)
    topic = unique("orders")
    run("topics", "create", topic)
    run("send", topic, "x")
    assert run("groups", "seed", "jobs", "--from-consumer-group", "none", "--execute")[0] == 1  # it made the fleet
    assert run("groups", "config", "jobs", "share.auto.offset.reset=earliest")[0] == 0
    assert run("groups", "ls") == (0, "", "there are no share groups\n")
