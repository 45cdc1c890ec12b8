"""Messages are found by name, and loaded by family."""

import importlib

import pytest

from flowshare.protocol import messages
from flowshare.protocol.messages.base import Request


@pytest.mark.parametrize("family", sorted(messages.FAMILIES))
def test_every_message_of_a_family_is_found_by_its_name(family):
    module = importlib.import_module(f"flowshare.protocol.messages.{family}")
    classes = {
        name for name, one in vars(module).items() if isinstance(one, type) and one.__module__ == module.__name__
    }

    assert classes <= set(messages.FAMILIES[family])
    assert all(getattr(messages, name) is getattr(module, name) for name in messages.FAMILIES[family])
    assert set(messages.FAMILIES[family]) <= set(dir(messages))


def test_a_name_that_no_family_has_is_refused():
    with pytest.raises(AttributeError, match="NoSuchRequest"):
        messages.NoSuchRequest  # noqa: B018


def test_families_share_no_name():
    names = [name for family in messages.FAMILIES.values() for name in family]

    assert len(names) == len(set(names))
    assert issubclass(messages.JoinGroupRequest, Request)
