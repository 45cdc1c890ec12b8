"""What a broker URL says of a fleet: which one, and where this worker listens."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flowshare.backend.url import BadBrokerUrl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.backend.url import BrokerUrl
    from flowshare.fleet.worker import FleetOptions

ADVICE: Final = (
    "name the address under which other workers reach it, FLOWSHARE_ADVERTISE=host:port or &advertise=host:port in "
    "the broker's URL, and where it listens, FLOWSHARE_LISTEN=0.0.0.0:9095 or &listen=…"
)
DEFAULT_FLEET: Final = "flowshare"
NODE_ID_BITS: Final = 31
WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104  compared with, not bound


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlace:
    """One process's place in a fleet.

    listen: host and port of the listener, port 0 any free one; None: see `listens`. advertise: what others are told,
    None: found out.
    settings: of a fleet that never had any.
    """

    fleet: str
    lead: bool
    listen: tuple[str, int] | None
    advertise: tuple[str, int] | None
    slots: int | None
    state_dir: Path | None
    settings: Mapping[str, str]

    @classmethod
    def of(cls, broker: BrokerUrl, *, lead: bool) -> FleetPlace:
        """Read the options. Raises: BadBrokerUrl."""
        options = broker.options
        slots = options.get("slots")
        if slots is not None and not (slots.isdigit() and 1 <= int(slots) <= 10_000):
            raise BadBrokerUrl(f"broker option slots={slots!r}: write a number from 1 to 10000")
        return cls(
            fleet=fleet_of(broker),
            lead=lead and broker.flag("lead", default=True),
            listen=_address("listen", options["listen"]) if "listen" in options else None,
            advertise=_address("advertise", options["advertise"]) if "advertise" in options else None,
            slots=None if slots is None else int(slots),
            state_dir=Path(options["state_dir"]) if "state_dir" in options else None,
            settings=broker.settings,
        )

    @property
    def advertised_port(self) -> int:
        """0: the port that is listened on."""
        return 0 if self.advertise is None else self.advertise[1]

    def listens(self, brokers: tuple[str, ...], *, guarded: bool) -> tuple[str, int]:
        """Host and port: what was named, else all addresses and any free port.

        A listener that is not `guarded`, by TLS or logins, is for this machine only where the brokers are on it.
        """
        if self.listen is not None:
            return self.listen
        near = _towards(brokers)
        apart = self.advertise is not None and not loopback(self.advertise[0])
        return (near, 0) if not guarded and not apart and loopback(near) else ("", 0)

    def advertised_host(self, listens: str, brokers: tuple[str, ...]) -> str:
        """What was named, else where it `listens`, else the address from which this machine reaches the brokers."""
        if self.advertise is not None:
            return self.advertise[0]
        return listens if listens not in WILDCARDS else _towards(brokers)

    def options(self) -> FleetOptions:
        """For the worker; node id and name are drawn."""
        from flowshare.fleet.worker import FleetOptions
        from flowshare.slots.places import SLOTS_DEFAULT

        return FleetOptions(
            fleet=self.fleet,
            node_id=secrets.randbits(NODE_ID_BITS),
            instance=str(uuid.uuid4()),
            slots=self.slots or SLOTS_DEFAULT,
            state_dir=None if self.state_dir is None else self.state_dir / self.fleet,
            settings=self.settings,
        )


def fleet_of(broker: BrokerUrl) -> str:
    """Name of the fleet that a broker URL is about."""
    return broker.options.get("fleet", DEFAULT_FLEET)


def loopback(host: str) -> bool:
    """Whether it is this machine alone that reaches a listener there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _towards(brokers: tuple[str, ...]) -> str:
    """Address of the interface that leads to the first broker whose name is known; nothing is sent."""
    for broker in brokers:
        host, _, port = broker.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port or 9092), type=socket.SOCK_DGRAM)
            family, kind, protocol, _, address = found[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def _address(name: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise BadBrokerUrl(f"broker option {name}={text!r}: write host:port")
    return host.strip("[]"), int(port)
