"""Internal topics of Kafka and flowshare, and the data that is lost with each.

Kafka's brokers delete most of these topics without a warning, so this module checks.
"""

from __future__ import annotations

from typing import Final

INTERNAL: Final = "__"
"""The prefix of all names of internal topics."""
FLEET_STATE: Final = "__flowshare_state."
"""The prefix of the name of a fleet's state topic; the fleet's name follows."""
MOVES: Final = "__flowshare_moves"
"""The topic with the marks of groups that were moved (`flowshare groups move`)."""
_LOST: Final = {
    "__consumer_offsets": "the committed offsets of all consumer groups, so that each reads its topics anew or skips",
    "__transaction_state": "which transactions are open, so that nothing ends them and their readers wait for ever",
    "__share_group_state": "where all share groups of the brokers stand, so that records that were finished run again",
    MOVES: "which groups were moved, so that one that is started where it was before handles its records twice",
}
_LOST_OTHERWISE: Final = "whatever its owner keeps in it"


def what_is_lost(topic: str) -> str | None:
    """Describe the data that is lost with an internal topic, as the end of "with it goes …"; None: the topic is not
    internal."""
    if not topic.startswith(INTERNAL):
        return None
    if topic.startswith(FLEET_STATE):
        return (
            f"all that the fleet {topic.removeprefix(FLEET_STATE)} knows: its groups begin anew, so that records that "
            "were finished run again and their outputs are written again, those of exactly_once=True, too"
        )
    return _LOST.get(topic, _LOST_OTHERWISE)


def deletes_internal(topic: str, lost: str) -> str:
    """Return why the topic is not deleted, and what to do. lost: the text of `what_is_lost`."""
    return (
        f"topic {topic} is an internal one, and with it goes {lost}; where that is wanted, stop all that works with it "
        f"and use `flowshare topics delete {topic} --internal`"
    )
