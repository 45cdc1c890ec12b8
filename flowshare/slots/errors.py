"""What the cores of slots raise when what lies in a state topic cannot be used. Each text says what to do.

SlotError
  SlotCorrupt      a record of the state topic cannot be what flowshare wrote, or what it needs was deleted
  NewerFormat      a record was written by a newer flowshare
  MembershipError  what a member of the slot group told, or got, cannot be what flowshare wrote
"""

from __future__ import annotations


class SlotError(Exception):
    """Base of all errors of the cores of slots."""


class SlotCorrupt(SlotError):
    """A record of the state topic is damaged or foreign, or records that are still needed are gone."""


class MembershipError(SlotError):
    """A member of the slot group tells something else than flowshare's workers do: another program uses the group."""


class NewerFormat(SlotError):
    """A record was written in a format that this release does not know yet."""
