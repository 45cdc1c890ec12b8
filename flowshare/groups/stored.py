"""Stored form of a classic group: a version, a checksum and JSON.

It is written when the leader's assignments come, when a static member is replaced, and when the group becomes Empty.
The time of becoming Empty is stored with it, so that committed offsets expire by when the members left, not by when a
server started. Deadlines are not stored.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

from flowshare.core_errors import StateCorrupt
from flowshare.groups.members import ClassicMember
from flowshare.groups.types import Supported
from flowshare.sealing import seal, unseal

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupState:
    """The durable part of a classic group: Stable if it has members, else Empty."""

    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    state_since_ms: int | None = None
    """None: stored by a release that did not store the time."""
    members: tuple[ClassicMember, ...] = ()
    """Members without their waiting requests."""


def encode_group(state: ClassicGroupState) -> bytes:
    """Return the state as bytes."""
    content = {
        "generation": state.generation,
        "protocol_type": state.protocol_type,
        "protocol_name": state.protocol_name,
        "leader": state.leader,
        "state_since_ms": state.state_since_ms,
        "members": [
            [
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.session_timeout_ms,
                one.rebalance_timeout_ms,
                [[name, _text(metadata)] for name, metadata in one.protocols],
                _text(one.assignment),
            ]
            for one in state.members
        ],
    }
    return seal(json.dumps(content, separators=(",", ":")).encode(), VERSION)


def decode_group(data: bytes) -> ClassicGroupState:
    """Return the state that `encode_group` wrote. Raises StateCorrupt."""
    body = unseal(data, VERSION)
    try:
        return _state(json.loads(body))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StateCorrupt(f"stored group cannot be read: {error!r}") from error


def _state(content: Any) -> ClassicGroupState:
    return ClassicGroupState(
        generation=content["generation"],
        protocol_type=content["protocol_type"],
        protocol_name=content["protocol_name"],
        leader=content["leader"],
        state_since_ms=content["state_since_ms"],
        members=tuple(
            ClassicMember(
                member_id=member_id,
                instance_id=instance_id,
                client_id=client_id,
                client_host=host,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocols=tuple(Supported(name, _bytes(metadata)) for name, metadata in protocols),
                assignment=_bytes(assignment),
            )
            for member_id, instance_id, client_id, host, session_ms, rebalance_ms, protocols, assignment in content[
                "members"
            ]
        ),
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
