"""An app's settings: Faust's, except for the broker, which flowshare reads itself.

Faust takes any unknown keyword in silence; here an unknown option is refused with the nearest name. Faust never sees
the broker's URL, which it would garble: its own transport gets the address at the start (`streams.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from faust.types.settings import Settings
from mode.utils.imports import symbol_by_name

from flowshare.agents.handler.errors import UsageError, refuse_unknown
from flowshare.agents.pages.gate import BadPages, read_hosts
from flowshare.backend.url import SHARES, BadBrokerUrl, BrokerUrl, parse_broker
from flowshare.log.folder import place_of

BROKER_ENV: Final = "FLOWSHARE_BROKER"
DATADIR_ENV: Final = "APP_DATADIR"
PLACEHOLDER: Final = "kafka://not-known-before-the-start"
SESSION_TIMEOUT_S: Final = 10.0
"""Seconds that a killed process's partitions wait for another process, on embedded (Faust's default: 60)."""
NAME_MAX: Final = 200
"""Most characters of an app's name: a topic's name has 249, and `.<agent>.dlq` follows the app's."""
_NAME: Final = rf"(?!\.\.?$)[a-zA-Z0-9._-]{{1,{NAME_MAX}}}"
_COMPAT: Final = frozenset(
    {
        "client_id",
        "commit_interval",
        "create_reply_topic",
        "num_standby_replicas",
        "default_partitions",
        "replication_factor",
    }
)
_OWN: Final = frozenset({"broker", "share", "fleet", "web_hosts", "monitor", "config_source", "loop", "beacon"})
_IN_THE_URL: Final = ("broker_consumer", "broker_producer", "broker_credentials", "ssl_context")
_AT_THE_TOPIC: Final = ("key_serializer", "value_serializer")
_MADE_LATER: Final = (
    "Table",
    "SetTable",
    "GlobalTable",
    "SetGlobalTable",
    "TableManager",
    "PartitionAssignor",
    "LeaderAssignor",
    "Router",
    "Worker",
)
"""Classes that Faust only calls, and imports with the settings although share agents need none of them: 30 ms."""


def read_options(app_id: str, options: dict[str, Any]) -> tuple[BrokerUrl | None, dict[str, Any]]:
    """Return the broker and Faust's options.

    The environment variable FLOWSHARE_BROKER replaces the code's broker. Raises: OptionError for an unknown option,
    UsageError for a broker URL that cannot be read.
    """
    _refuse(app_id, options)
    left = {name: value for name, value in options.items() if name not in ("share", "fleet", "web_hosts")}
    broker = os.environ.get(BROKER_ENV) or left.get("broker")
    left["broker"] = PLACEHOLDER
    left.setdefault("web_bind", "127.0.0.1")
    if "default_partitions" not in left:
        left.setdefault("topic_partitions", 1)  # as share agents make them; with Faust's 8 no table would fit
    for name in _MADE_LATER:
        left.setdefault(name, partial(_make, Settings.SETTINGS[name].default))
    try:
        address = None if broker is None else parse_broker(str(broker))
    except BadBrokerUrl as error:
        raise UsageError(f"App({app_id!r}): {error}") from None
    left.setdefault("datadir", _data_folder(app_id, address))
    if address is not None and address.kind == "kafka":
        address = address.with_defaults(_place_of_groups(app_id, options))
    if address is not None and address.kind == "embedded":
        left.setdefault("broker_session_timeout", SESSION_TIMEOUT_S)
    return address, left


def _refuse(app_id: str, options: Mapping[str, Any]) -> None:
    """Refuse an app's name or an option that cannot be. Raises: OptionError, UsageError."""
    if not isinstance(app_id, str) or not re.fullmatch(_NAME, app_id):
        raise UsageError(
            f"App({app_id!r}): the app's name is the beginning of the names of its groups and topics (dead letters, "
            f"tables), so it takes 1 to {NAME_MAX} letters, digits, '.', '_' and '-', and is neither '.' nor '..'"
        )
    refuse_unknown(f"App({app_id!r})", options, {*Settings.SETTINGS, *_COMPAT, *_OWN})
    for name in [one for one in (*_AT_THE_TOPIC, *_IN_THE_URL) if one in options]:
        why = f"on share agents; give it to each topic that wants it: app.topic(…, {name}={options[name]!r})"
        if name in _IN_THE_URL:
            why = (
                "here; addresses, logins and TLS stand in the broker's URL, for share agents and Faust's own: "
                "broker='kafka://user@host:9092?security=SASL_SSL' (docs/security.md)"
            )
        raise UsageError(f"App({app_id!r}): {name} has no effect {why}")


def _make(path: str, *arguments: Any, **more: Any) -> Any:
    """Make one object of the class that `path` names, which is imported now."""
    return symbol_by_name(path)(*arguments, **more)


def _data_folder(app_id: str, address: BrokerUrl | None) -> str:
    """Return an app's default folder of tables and checkpoints: with an embedded path's own data, else below
    XDG_STATE_HOME; never one that depends on the directory in which the process was started."""
    if DATADIR_ENV in os.environ:
        return os.environ[DATADIR_ENV]
    if address is not None and address.kind == "embedded":
        folder = place_of(Path(address.path)) / "apps" / app_id
    else:
        base = Path(os.environ.get("XDG_STATE_HOME", ""))
        folder = (base if base.is_absolute() else Path.home() / ".local" / "state") / "flowshare" / app_id
    return str(folder).replace("{", "{{").replace("}", "}}")  # Faust formats the text


def read_share(app_id: str, given: Any) -> str:
    """Check the option `share`: leader of the share groups on a Kafka cluster (others have no choice). Raises:
    UsageError."""
    if given not in SHARES:
        raise UsageError(f"App({app_id!r}): share takes 'auto', 'native' or 'workers', not {given!r}")
    return str(given)


def read_web_hosts(app_id: str, given: Any) -> tuple[str, ...]:
    """Check the option `web_hosts`. Raises: UsageError."""
    hosts = (given,) if isinstance(given, str) else tuple(given)
    try:
        read_hosts(hosts, {})
    except BadPages as error:
        raise UsageError(f"App({app_id!r}): web_hosts: {error}") from None
    return hosts


def _place_of_groups(app_id: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of app and environment about who leads the groups; the broker's URL overrides them."""
    told = {"share": read_share(app_id, options.get("share", "auto")), "fleet": str(options.get("fleet", app_id))}
    for name in ("listen", "advertise", "state_dir"):
        text = os.environ.get(f"FLOWSHARE_{name.upper()}")
        if text:
            told[name] = text
    return told
