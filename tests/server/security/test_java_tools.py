"""Kafka's own command-line tools against a broker with TLS, logins and ACLs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.toolbox import Told, Toolbox
from tests.server.security.broker import Secured, secured
from tests.server.security.certificates import Certificates

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.asyncio]


@pytest.fixture(scope="module")
def toolbox() -> Iterator[Toolbox]:
    box = Toolbox()
    yield box
    box.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Tools:
    """The tools as one user."""

    def __init__(
        self, toolbox: Toolbox, broker: Secured, config: Path, ca: Path, user: str, password: str, mechanism: str
    ) -> None:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        config.write_text(
            "security.protocol=SASL_SSL\n"
            f"sasl.mechanism={mechanism}\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
            f'username="{user}" password="{password}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={ca}\n"
            "request.timeout.ms=20000\ndefault.api.timeout.ms=20000\n",
            encoding="utf-8",
        )
        self._toolbox = toolbox
        self._where = ("--bootstrap-server", f"{broker.host}:{broker.port}", "--command-config", str(config))

    async def run(self, tool: str, *arguments: str) -> Told:
        return await asyncio.to_thread(self._toolbox, tool, *self._where, *arguments)


async def test_kafka_acls_and_kafka_configs_give_a_new_user_its_rights(
    tmp_path: Path, files: Certificates, toolbox: Toolbox
) -> None:
    async with secured(tmp_path, acls="allow User:bob read topic paid\n", tls=files.tls()) as broker:

        def tools(user: str, password: str, mechanism: str) -> Tools:
            return Tools(toolbox, broker, tmp_path / f"{user}.properties", files.ca, user, password, mechanism)

        await broker.topic("orders")
        admin = tools("admin", "top secret", "SCRAM-SHA-512")
        person = ("--entity-type", "users", "--entity-name", "carol")
        added = await admin.run(
            "kafka-configs", *person, "--alter", "--add-config", "SCRAM-SHA-256=[password=her-word]"
        )
        assert added.code == 0, added
        rule = ("--allow-principal", "User:carol", "--operation", "Describe", "--topic", "ord")
        added = await admin.run("kafka-acls", "--add", *rule, "--resource-pattern-type", "prefixed")
        assert added.code == 0, added

        carol = tools("carol", "her-word", "SCRAM-SHA-256")
        assert (await carol.run("kafka-topics", "--list")).rows == [["orders"]]
        refused = await carol.run("kafka-acls", "--list")
        assert "DESCRIBE on the cluster is not allowed" in refused.out + refused.err

        shown = await admin.run("kafka-acls", "--list")
        assert "principal=User:carol, host=*, operation=DESCRIBE" in shown.out
        assert "principal=User:bob, host=*, operation=READ" in shown.out

        gone = await admin.run("kafka-acls", "--remove", "--force", *rule, "--resource-pattern-type", "prefixed")
        assert gone.code == 0, gone
        assert (await carol.run("kafka-topics", "--list")).rows == []


async def test_javas_plain_logs_in_and_its_wrong_password_is_told(
    tmp_path: Path, files: Certificates, toolbox: Toolbox
) -> None:
    async with secured(tmp_path, tls=files.tls()) as broker:
        await broker.topic("orders")
        config = tmp_path / "alice.properties"
        right = Tools(toolbox, broker, config, files.ca, "alice", "wonder land", "PLAIN")
        assert (await right.run("kafka-topics", "--list")).rows == [["orders"]]

        wrong = Tools(toolbox, broker, config, files.ca, "alice", "looking glass", "SCRAM-SHA-512")
        told = await wrong.run("kafka-topics", "--list")

    assert told.code != 0
    assert "the user name or the password is wrong" in told.out + told.err
