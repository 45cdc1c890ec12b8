"""The fleet options of a broker URL: the fleet's name, where this worker listens (`FleetPlace`), and how that is
secured.

`FleetSecurity` says who may talk to a fleet's listeners, and how the fleet's own processes prove that they belong to
it. A worker reads Kafka with its own credentials and hands records out, so its listener must not give away more than
the brokers would. These options turn protection on:

    TLS                     `listen_tls_cert` (key, ca, client_auth: as `flowshare serve` has them)
    logins                  `listen_sasl_users`, or client certificates that are required
    rights                  as soon as the listener asks for an identity, or `listen_acls` is named: nobody but the
                            fleet itself may do anything that the ACL file does not grant

A listener with neither TLS nor logins is for this machine only, unless `listen_insecure` says otherwise.

The fleet's own processes, workers and commands, reach its listeners by `fleet_user` or by certificate. A worker's call
to another one needs the keys of a member of the slot group (`fleet.peer_login`) and, where rights are on,
CLUSTER_ACTION on the cluster: super users have it, `fleet_user` is one. Each option stands in the broker URL, or in the
environment as FLOWSHARE_ and its name.
"""

from __future__ import annotations

import os
import secrets
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from flowshare.backend.base import BackendError
from flowshare.backend.url import FLEET_SECURITY, BadBrokerUrl, as_flag
from flowshare.server.security.guesses import is_loopback

if TYPE_CHECKING:
    import ssl

    from flowshare.backend.url import BrokerUrl
    from flowshare.client.net.security import Security
    from flowshare.clock import Clock
    from flowshare.fleet.worker import FleetOptions
    from flowshare.server.security.acls import Authorizer
    from flowshare.server.security.sasl import Sasl
    from flowshare.server.security.tls import ClientCertificates, ServerTls

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

    listen: host and port of the listener, port 0: any free port; None: see `listens`. advertise: address told to
    others; None: found out.
    settings: for the first start of a fleet.
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
        """Read the options of a broker URL. Raises: BadBrokerUrl."""
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

    def listens(self, brokers: tuple[str, ...], *, guarded: bool) -> tuple[str, int]:
        """Return host and port of the listener: the named ones, else all addresses and any free port.

        A listener that is not `guarded`, by TLS or logins, is for this machine only where the brokers are on it.
        """
        if self.listen is not None:
            return self.listen
        near = _towards(brokers)
        apart = self.advertise is not None and not is_loopback(self.advertise[0])
        return (near, 0) if not guarded and not apart and is_loopback(near) else ("", 0)

    def advertised_host(self, listens: str, brokers: tuple[str, ...]) -> str:
        """Return the host to advertise: the named one, else the one it `listens` on, else this machine's address
        towards the brokers."""
        if self.advertise is not None:
            return self.advertise[0]
        return listens if listens not in WILDCARDS else _towards(brokers)

    def options(self) -> FleetOptions:
        """Return the worker's options; node id and instance name are random."""
        from flowshare.fleet.worker import FleetOptions
        from flowshare.slots.placement import SLOTS_DEFAULT

        return FleetOptions(
            fleet=self.fleet,
            node_id=secrets.randbits(NODE_ID_BITS),
            instance=str(uuid.uuid4()),
            slots=self.slots or SLOTS_DEFAULT,
            state_dir=None if self.state_dir is None else self.state_dir / self.fleet,
            settings=self.settings,
        )


def fleet_of(broker: BrokerUrl) -> str:
    """Return the name of the fleet in a broker URL."""
    return broker.options.get("fleet", DEFAULT_FLEET)


def _towards(brokers: tuple[str, ...]) -> str:
    """Return the address of the interface that leads to the first broker whose name is known; nothing is sent."""
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


PASSWORD_VARIABLE: Final = "FLOWSHARE_FLEET_PASSWORD"  # noqa: S105 - the variable's name
PREFIX: Final = "FLOWSHARE_"
"""Prefix of environment variables: each option has one, FLOWSHARE_LISTEN_TLS_CERT and so on; the URL has the last
word."""
_CLIENT_AUTH: Final = ("none", "requested", "required")


class Doors(NamedTuple):
    """The security of a listener; None: that part is off."""

    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None
    authorizer: Authorizer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSecurity:
    """Security of a fleet's listeners.

    tls, users_file, mechanisms, acl_file, super_users: as in `server.standalone.StandaloneOptions`. client_auth: none,
    requested or required. insecure: listen beyond this machine with less protection than the brokers have, or with
    none.
    own: login of the fleet's processes among each other.
    """

    tls: ServerTls | None
    users_file: Path | None
    mechanisms: tuple[str, ...]
    acl_file: Path | None
    super_users: tuple[str, ...]
    client_auth: ClientCertificates
    insecure: bool
    own: Security

    @classmethod
    def of(cls, broker: BrokerUrl, environment: Mapping[str, str] = os.environ) -> FleetSecurity:
        """Read the options of a broker URL and the environment. Raises: BadBrokerUrl."""
        options = _options(broker, environment)
        auth = _client_auth(options)
        users = options.get("listen_sasl_users")
        acls = options.get("listen_acls")
        super_users = tuple(name.strip() for name in options.get("listen_super_users", "").split(";") if name.strip())
        own = _own(options, auth, environment)
        if users and not own.sasl:
            raise BadBrokerUrl(
                "listen_sasl_users makes everybody log in, the fleet's own workers, too: name their user, "
                f"fleet_user=…, and its password, {PASSWORD_VARIABLE} or fleet_password_file=…"
            )
        mechanisms = _mechanisms(options)
        if users and own.mechanism not in mechanisms:
            raise BadBrokerUrl(
                f"the fleet's own processes log in by {own.mechanism} (fleet_sasl_mechanism), and the listener takes "
                f"{', '.join(mechanisms)}: name one of those, or the other one in listen_sasl_mechanisms"
            )
        if super_users and not (users or acls or auth != "none"):
            raise BadBrokerUrl("listen_super_users goes with listen_sasl_users, listen_tls_client_auth or listen_acls")
        return cls(
            tls=_tls(options, auth),
            users_file=Path(users) if users else None,
            mechanisms=mechanisms,
            acl_file=Path(acls) if acls else None,
            super_users=(*super_users, *((f"User:{own.username}",) if own.sasl else ())),
            client_auth=auth,
            insecure=as_flag("listen_insecure", options.get("listen_insecure", "false")),
            own=own,
        )

    @property
    def knows(self) -> bool:
        """True if the listener asks every client for its identity."""
        return self.users_file is not None or self.client_auth == "required"

    @property
    def guarded(self) -> bool:
        """True if the listener has TLS or logins."""
        return self.tls is not None or self.knows

    def check(self, listen: str, kafka: Security) -> None:
        """Refuse a listener at `listen` that is less protected than the brokers, or not guarded at all.

        Raises: BackendError
        """
        if self.insecure or is_loopback(listen):
            return
        missing: list[str] = []
        if self.tls is None and (kafka.tls or not self.guarded):
            missing.append("TLS (listen_tls_cert)")
        asked = kafka.sasl or kafka.certificate_file is not None
        if not self.knows and (asked or not self.guarded):
            missing.append("logins (listen_sasl_users, or listen_tls_client_auth=required)")
        if missing:
            less = asked or kafka.tls
            raise BackendError(
                "this worker's listener can be reached from other machines and hands out what the worker may read, and "
                f"{'the brokers ask for more than it does' if less else 'it asks nobody who they are'}: add "
                f"{' and '.join(missing)}; or listen on this machine only, listen=127.0.0.1:0; or, where whoever "
                "reaches it may read and change all, say listen_insecure=true (FLOWSHARE_LISTEN_INSECURE=true)"
            )

    async def doors(self, clock: Clock) -> Doors:
        """Read the files and make the listener's security. Raises: BackendError."""
        from flowshare.log.memory import MemoryStorage
        from flowshare.server.security.acl_file import BadAclFile
        from flowshare.server.security.tls import BadTls
        from flowshare.server.security.users_file import BadUsersFile, read_users
        from flowshare.server.standalone import open_sasl

        store = MemoryStorage(clock)  # users and ACLs come from files only
        try:
            users = None if self.users_file is None else read_users(self.users_file)
            return Doors(
                tls=None if self.tls is None else self.tls.context(),
                sasl=await open_sasl(users, store, self.mechanisms),
                authorizer=await self._authorizer(store),
            )
        except (BadTls, BadUsersFile, BadAclFile) as error:
            raise BackendError(str(error)) from None

    async def _authorizer(self, store: Any) -> Authorizer | None:
        if self.users_file is None and self.acl_file is None and self.client_auth == "none":
            return None
        from flowshare.server.security.acl_file import check_principal, read_acls
        from flowshare.server.security.acl_store import AclStore

        for principal in self.super_users:
            check_principal(principal)
        acls = () if self.acl_file is None else read_acls(self.acl_file)
        authorizer = AclStore(store, file=acls, super_users=self.super_users)
        await authorizer.start()
        return authorizer


def _options(broker: BrokerUrl, environment: Mapping[str, str]) -> dict[str, str]:
    found = {name: environment.get(PREFIX + name.upper(), "") for name in FLEET_SECURITY}
    found.update({name: broker.options[name] for name in FLEET_SECURITY if name in broker.options})
    return {name: text for name, text in found.items() if text}


def _client_auth(options: Mapping[str, str]) -> ClientCertificates:
    """Read client_auth. Raises: BadBrokerUrl."""
    beside = ("listen_tls_key", "listen_tls_ca", "listen_tls_client_auth")
    if "listen_tls_cert" not in options and any(name in options for name in beside):
        raise BadBrokerUrl(f"{', '.join(beside)} need the listener's certificate: listen_tls_cert")
    text = options.get("listen_tls_client_auth", "requested" if "listen_tls_ca" in options else "none")
    if text not in _CLIENT_AUTH:
        raise BadBrokerUrl(f"listen_tls_client_auth={text!r}: write none, requested or required")
    return cast("Literal['none', 'requested', 'required']", text)


def _mechanisms(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the listener's SASL mechanisms. Raises: BadBrokerUrl."""
    from flowshare.server.security.sasl import UnknownMechanism, offered, words_of

    text = options.get("listen_sasl_mechanisms")
    if text is not None and "listen_sasl_users" not in options:
        raise BadBrokerUrl("listen_sasl_mechanisms goes with listen_sasl_users: without users nobody logs in")
    try:
        return offered(None if text is None else words_of(text), tls="listen_tls_cert" in options)
    except UnknownMechanism as error:
        raise BadBrokerUrl(f"listen_sasl_mechanisms: {error}") from None


def _tls(options: Mapping[str, str], auth: ClientCertificates) -> ServerTls | None:
    if "listen_tls_cert" not in options:
        return None
    from flowshare.server.security.tls import ServerTls

    key, ca = options.get("listen_tls_key"), options.get("listen_tls_ca")
    return ServerTls(
        certificate=Path(options["listen_tls_cert"]),
        key=Path(key) if key else None,
        ca=Path(ca) if ca else None,
        client_certificates=auth,
    )


def _own(options: Mapping[str, str], auth: ClientCertificates, environment: Mapping[str, str]) -> Security:
    """Return this process's security towards the fleet's listeners. Raises: BadBrokerUrl."""
    from flowshare.client.net.security import BadSecurity, Security, find_password

    certificate, key = options.get("fleet_certificate_file"), options.get("fleet_key_file")
    if certificate is None and auth != "none":
        certificate, key = options["listen_tls_cert"], options.get("listen_tls_key")
    tls = "listen_tls_cert" in options or "fleet_ca_file" in options or certificate is not None
    user = options.get("fleet_user", "")
    secured = f"{'SASL_' if user else ''}{'SSL' if tls else 'PLAINTEXT'}"
    protocol: Any = options.get("fleet_security", secured).upper()
    ca = options.get("fleet_ca_file", options.get("listen_tls_ca"))
    file = options.get("fleet_password_file")
    try:
        password = ""
        if user:
            own = environment.get(PASSWORD_VARIABLE, "")
            password = find_password("" if file else own, Path(file) if file else None, {})
            if not password:
                raise BadBrokerUrl(
                    f"fleet_user={user} has no password: set {PASSWORD_VARIABLE} or fleet_password_file=…"
                )
        return Security(
            protocol=protocol,
            mechanism=cast("Any", options.get("fleet_sasl_mechanism", "SCRAM-SHA-512").upper()),
            username=user,
            password=password,
            ca_file=Path(ca) if ca else None,
            certificate_file=Path(certificate) if certificate else None,
            key_file=Path(key) if key else None,
            check_hostname=as_flag("fleet_check_hostname", options.get("fleet_check_hostname", "true")),
        )
    except BadSecurity as error:
        raise BadBrokerUrl(f"how the fleet's workers reach each other (fleet_…, listen_…): {error}") from None
