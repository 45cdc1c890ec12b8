"""Errors for unusable contents of a state topic or of the slot group. Each text says what to do.

SlotError
  SlotCorrupt      data written under a claim is not as flowshare writes it, or data still needed was deleted
  ForeignRecord    a record of the state topic was not written by flowshare: it is passed over
  NewerFormat      a record was written by a newer flowshare
  MembershipError  the subscription or assignment of a slot group's member was not written by flowshare
"""

from __future__ import annotations


class SlotError(Exception):
    """Base of all errors of the cores of slots."""


class SlotCorrupt(SlotError):
    """The valid part of a state topic is damaged, or records that are still needed are gone."""


class ForeignRecord(SlotError):
    """A record that flowshare did not write, by its form or its checksum. Nothing of a slot depends on it."""


class MembershipError(SlotError):
    """The data of a slot group's member is not a flowshare worker's: another program uses the group."""


class NewerFormat(SlotError):
    """A record was written in a format that this release does not know yet."""
