"""Cutting bytes into frames: the same frames whatever the pieces, and no more kept than allowed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowshare.server.net.frames import FrameError, Frames
from tests.server.wire import frame

KEY = 7
LONGER = {KEY: 1_000, KEY + 2: 200, KEY + 3: 50}


def taken(frames: Frames) -> list[bytes]:
    found = []
    while (data := frames.next()) is not None:
        found.append(data)
    return found


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=9_000), max_size=6),
    cuts=st.lists(st.integers(1, 6_000), max_size=30),
    each_time=st.booleans(),
)
def test_frames_are_the_same_whatever_pieces_they_come_in(bodies, cuts, each_time):
    data = b"".join(map(frame, bodies))
    frames, found = Frames(10_000), []
    sizes = iter(cuts)
    while data:
        size = next(sizes, len(data))
        frames.feed(data[:size])
        data = data[size:]
        if each_time:
            found += taken(frames)
    found += taken(frames)
    assert found == bodies
    assert all(type(one) is bytes for one in found)
    assert frames.buffered == 0


def test_a_frame_that_comes_byte_by_byte_is_found_when_it_is_whole():
    frames = Frames(100)
    data = frame(b"0123456789")
    for byte in data[:-1]:
        frames.feed(bytes((byte,)))
        assert frames.next() is None
    frames.feed(data[-1:])
    assert frames.next() == b"0123456789"
    assert frames.next() is None


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 101, 2**31 - 1])
def test_a_length_that_is_not_allowed_is_refused_before_anything_is_kept(length):
    frames = Frames(100)
    frames.feed(struct.pack(">i", length))
    with pytest.raises(FrameError, match=f"says that it has {length} bytes"):
        frames.next()


def test_longer_frames_are_for_certain_keys_only():
    frames = Frames(100)
    frames.allow_longer(LONGER)
    body = struct.pack(">h", KEY) + bytes(500)
    frames.feed(frame(body)[:5])
    assert frames.next() is None
    frames.feed(frame(body)[5:])
    assert frames.next() == body
    frames.feed(struct.pack(">ih", 502, KEY + 1))
    with pytest.raises(FrameError, match="100 are allowed for API key 8"):
        frames.next()


@pytest.mark.parametrize(("key", "length"), [(KEY, 1_000), (KEY + 1, 100), (KEY + 2, 200), (KEY + 3, 100)])
def test_each_key_has_its_own_longest_frame(key, length):
    frames = Frames(100)
    frames.allow_longer(LONGER)
    body = struct.pack(">h", key) + bytes(length - 2)
    frames.feed(frame(body))
    assert frames.next() == body
    frames.feed(frame(body + b"\0"))
    with pytest.raises(FrameError, match=f"{length} are allowed"):
        frames.next()


def test_no_key_makes_a_frame_longer_than_the_upper_bound():
    frames = Frames(100)
    frames.allow_longer(LONGER)
    frames.feed(struct.pack(">ih", 1_001, KEY))
    with pytest.raises(FrameError, match="1000 are allowed"):
        frames.next()


def test_what_is_forgotten_is_gone():
    frames = Frames(100)
    frames.feed(frame(b"12345678")[:7])
    frames.next()
    frames.clear()
    assert frames.buffered == 0
    frames.feed(frame(b"another"))
    assert frames.next() == b"another"
