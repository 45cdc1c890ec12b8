"""Compresses and decompresses record batches; the decompressed size is bounded.

The four codecs of Kafka: gzip, snappy (plain and xerial's blocks), lz4 frames, zstd. All from cramjam.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, Final, cast

from flowshare.protocol.headers import DecodeError

XERIAL: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES: Final = 16
GROWTH: Final = 4
FIRST_GUESS: Final = 8
"""The first guess of the decompressed size, as a multiple of the compressed size."""


@functools.cache
def _cramjam() -> Any:
    import cramjam

    return cramjam


def decompress(codec: str, data: memoryview, *, head: bytes, tail: int, size_max: int) -> memoryview:
    """Return `head`, then the decompressed bytes; `tail` zero bytes lie in the memory behind them.

    Raises: DecodeError (the bytes are damaged, or would become more than `size_max`).
    """
    if codec == "snappy":
        return _snappy(data, head=head, tail=tail, size_max=size_max)
    into = cast("Callable[[memoryview, memoryview], int]", getattr(_cramjam(), codec).decompress_into)
    error = _cramjam().DecompressionError
    space = min(size_max, max(4096, FIRST_GUESS * len(data)))
    while True:
        buffer = bytearray(len(head) + space + tail)
        view = memoryview(buffer)
        try:
            size = into(data, view[len(head) : len(head) + space])
        except error as failure:
            # Too little space and damage look alike; at the limit, either is an error.
            if space >= size_max:
                raise DecodeError(f"{codec}: {failure} (limit {size_max} bytes)") from failure
            space = min(size_max, space * GROWTH)
            continue
        buffer[: len(head)] = head
        return view[: len(head) + size]


def compress(codec: str, data: bytes) -> bytes:
    """Compress bytes as Kafka's clients do, by aiokafka's functions."""
    from aiokafka import codec as codecs

    return cast("bytes", getattr(codecs, f"{codec}_encode")(data))


def _snappy(data: memoryview, *, head: bytes, tail: int, size_max: int) -> memoryview:
    cramjam = _cramjam()
    blocks = _xerial_blocks(data) if bytes(data[: len(XERIAL)]) == XERIAL else [data]
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        if sum(sizes) > size_max:
            raise DecodeError(f"snappy: {sum(sizes)} bytes are more than {size_max}")
        buffer = bytearray(len(head) + sum(sizes) + tail)
        buffer[: len(head)] = head
        view, position = memoryview(buffer), len(head)
        for block, size in zip(blocks, sizes, strict=True):
            if size:
                cramjam.snappy.decompress_raw_into(block, view[position : position + size])
            position += size
    except cramjam.DecompressionError as failure:
        raise DecodeError(f"snappy: {failure}") from failure
    return view[:position]


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    position, blocks = XERIAL_HEADER_BYTES, list[memoryview]()
    while position < len(data):
        if len(data) - position < 4:
            raise DecodeError("snappy: a block's length is cut off")
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 < size <= len(data) - position:
            raise DecodeError(f"snappy: a block says {size} bytes, {len(data) - position} are left")
        blocks.append(data[position : position + size])
        position += size
    return blocks
