"""What the fleet's parts raise, beside the log's and the client's errors.

LogError (log.base)
  NotLed              another worker leads the slot, or nobody does; a write that raises it is not confirmed, but may be
                      in the log all the same, and count
ClientError (client.errors)
  SlotGroupRefused    this worker cannot be a member of the fleet's slot group, and trying again does not help
  StateTopicRefused   the fleet's state topic is not as it has to be; the text has the command that mends it
"""

from __future__ import annotations

from flowshare.client.errors import ClientError
from flowshare.log.base import NotLed


class SlotGroupRefused(ClientError):
    """This worker cannot be a member of the fleet's slot group, and trying again does not help."""


class StateTopicRefused(ClientError):
    """The fleet's state topic is not as it has to be; the text has the command that mends it."""


__all__ = ["NotLed", "SlotGroupRefused", "StateTopicRefused"]
