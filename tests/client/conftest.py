"""Fixtures that the client's tests share."""

from __future__ import annotations

import pytest

from flowshare.testing.clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()
