"""Messages are found by name, and loaded by family."""

import subprocess
import sys

import pytest

from flowshare.protocol import messages
from flowshare.protocol.messages.base import Request


def test_every_family_is_looked_through():
    assert issubclass(messages.ShareFetchRequest, Request)
    assert issubclass(messages.WriteShareGroupStateRequest, Request)
    assert messages.JoinGroupRequest is messages.JoinGroupRequest


def test_a_name_that_no_family_has_is_refused():
    with pytest.raises(AttributeError, match="NoSuchRequest"):
        messages.NoSuchRequest  # noqa: B018


def test_what_share_agents_do_not_speak_of_is_not_loaded_for_them():
    code = (
        "import sys; from flowshare.protocol.messages import FindCoordinatorRequest, ShareFetchRequest; "
        "print(sorted(name for name in sys.modules if name.startswith('flowshare.protocol.messages.')))"
    )

    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert "messages.groups" in loaded
    assert "messages.classic" not in loaded
    assert "messages.state" not in loaded
