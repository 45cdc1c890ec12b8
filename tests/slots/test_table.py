"""The table against a plain dictionary."""

from __future__ import annotations

import random
import uuid

from flowshare.server.runtime.state import ShareKey
from flowshare.slots.table import Kept, SlotTable
from tests.slots.world import everything

TOPIC = uuid.UUID(int=5)


def random_key(source):
    prefix = ShareKey(source.choice("ab"), TOPIC, source.randrange(3)).prefix
    return source.choice([prefix + b"\0", prefix + b"\1" + bytes([source.randrange(4)]), b"g/a", b"g/ab", b"c/a", b"m"])


def test_the_table_agrees_with_a_dictionary():
    source = random.Random(1)
    table, model = SlotTable(), {}
    for offset in range(3000):
        entries = [
            (random_key(source), source.choice([None, b"", b"v%d" % offset])) for _ in range(source.randrange(4))
        ]
        table.apply(entries, offset)
        for key, value in entries:
            model.pop(key, None)
            if value is not None:
                model[key] = Kept(key, value, offset)
        if offset % 50:
            continue
        assert everything(table) == list(model.values())
        assert table.oldest() == next((kept.offset for kept in model.values()), None)
        assert list(table.older(offset - 20)) == [kept for kept in model.values() if kept.offset < offset - 20]
        assert table.size_bytes == sum(len(kept.key) + len(kept.value) for kept in model.values())
        share = ShareKey("a", TOPIC, 1).prefix
        for prefix in (b"", b"s", b"s/", share, share + b"\1", share[:10], b"g/", b"g/a", b"c/b", b"m", b"z", b"mm"):
            expected = sorted((key, kept.value) for key, kept in model.items() if key.startswith(prefix))
            assert table.scan(prefix) == expected


def test_a_table_is_made_again_from_what_it_kept_in_any_order():
    table = SlotTable()
    for offset in range(10):
        table.apply([(b"g/%d" % (offset % 4), b"v%d" % offset)], offset)

    again = SlotTable(sorted(everything(table)))

    assert everything(again) == everything(table)
