"""Who holds which keys: sharing, draining, leases, zombies. Numbers are those of the scenarios."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.cooperative.types import HASHES
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import settle
from tests.server.cooperative.world import LEASE_MS, LOWER, NONE, UPPER, WHOLE, cooperative

pytestmark = pytest.mark.asyncio
QUARTER = HASHES // 4


def pairs(held):
    """Without their epochs."""
    return [tuple(one[:2]) for one in held]


async def test_two_members_share_a_partition_by_keys():
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")

        assert pairs((await a.hold(LOWER)).held) == list(LOWER)
        assert pairs((await b.hold(UPPER)).held) == list(UPPER)


async def test_what_a_member_holds_is_blocked_for_others_until_it_gives_it_back():
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(WHOLE)
        b.generation = 2

        refused = await b.hold(UPPER)
        await a.hold(LOWER)
        granted = await b.hold(UPPER)

        assert (refused.held, [tuple(one) for one in refused.blocked]) == ((), [(*UPPER[0], "a")])
        assert (pairs(granted.held), granted.blocked) == (list(UPPER), ())
        assert w.server.stats()["cooperative"]["blocked"] == 1


async def test_only_the_slot_of_a_slow_key_stays_while_the_others_move_at_once():  # 36
    slow = (HASHES - 65_536, HASHES)
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(WHOLE)
        b.generation = 2
        await b.hold(UPPER)

        await a.hold((*LOWER, slow))
        moved = await b.hold(UPPER)
        await a.commit((0, 1), keys=slow)
        await a.hold(LOWER)
        whole = await b.hold(UPPER)

        assert pairs(moved.held) == [(HASHES // 2, slow[0])]
        assert pairs(whole.held) == list(UPPER)


async def test_what_a_dead_member_held_is_free_when_its_lease_ends():  # 37
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(WHOLE)
        await a.commit((0, 3))
        await w.clock.advance((LEASE_MS - 1) / 1000)
        before = await b.hold(WHOLE)
        await w.clock.advance(0.001)
        after = await b.hold(WHOLE)

        assert (before.held, pairs(after.held), after.stable) == ((), list(WHOLE), 3)


async def test_a_zombies_commit_is_fenced():  # 38
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(WHOLE)
        zombie = a.entry((0, 5))
        await w.clock.advance(LEASE_MS / 1000)
        await b.hold(WHOLE)

        told = await a.commits(zombie)

        assert (told.error, told.fenced) == (NONE, (0,))
        assert await w.state() == (0, [])
        assert w.server.stats()["cooperative"]["fenced"] == 1


async def test_a_zombie_that_gets_its_keys_back_cannot_commit_by_its_old_claim():  # 38, 39
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(WHOLE)
        zombie = a.entry((0, 5))
        await w.clock.advance(LEASE_MS / 1000)
        await b.hold(WHOLE)
        await b.leaves()
        again = await a.hold(WHOLE)

        told = await a.commits(zombie)

        assert again.held[0].epoch > zombie.epoch
        assert told.fenced == (0,)


async def test_keys_that_come_back_before_they_are_given_away_go_on():  # 39
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        first = await a.hold(WHOLE)
        b.generation = 2
        await b.hold(UPPER)
        a.generation = b.generation = 3

        kept = await a.hold(WHOLE)

        assert kept.held == first.held
        assert (kept.granted, kept.blocked, kept.ranges) == ((), (), None)


async def test_who_stays_strict_waits_for_the_lease_and_who_is_available_takes_over():  # 41
    async with cooperative(partitions=2) as w:
        a, b = w.member("a"), w.member("b")
        await a.asks({0: WHOLE, 1: WHOLE}, lease_ms=60_000)
        b.generation = 2

        async def ask(mode, at):
            answer = await b.asks({at: WHOLE, 1 - at: ()}, mode=mode, drain_timeout_ms=2_000, lease_ms=60_000)
            return pairs(next(part for part in answer.partitions if part.partition == at).held)

        await ask("available", 0)
        await w.clock.advance(2.0)
        taken = await ask("available", 0)
        await ask("strict", 1)
        await w.clock.advance(2.0)
        waited = await ask("strict", 1)

        assert (taken, waited) == (list(WHOLE), [])
        assert w.server.stats()["cooperative"]["overlaps"] == 1
        assert (await a.commits(a.entry((0, 1)))).fenced == (0,)


async def test_a_member_that_names_no_partitions_leaves_them_all():
    async with cooperative(partitions=2) as w:
        a, b = w.member("a"), w.member("b")
        await a.asks({0: WHOLE, 1: WHOLE})
        await a.leaves()

        answer = await b.asks({0: WHOLE, 1: WHOLE})

        assert [pairs(part.held) for part in answer.partitions] == [list(WHOLE)] * 2


async def test_what_is_not_named_is_free():
    async with cooperative(partitions=2) as w:
        a, b = w.member("a"), w.member("b")
        await a.asks({0: WHOLE, 1: WHOLE})
        await a.asks({0: WHOLE})

        answer = await b.asks({0: WHOLE, 1: WHOLE})

        assert [pairs(part.held) for part in answer.partitions] == [[], list(WHOLE)]


async def test_a_call_that_comes_late_changes_nothing():
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(WHOLE)
        await a.leaves()
        a.sequence = 0

        late = await a.asks({0: WHOLE})

        assert late.error is ErrorCode.FENCED_MEMBER_EPOCH
        assert pairs((await b.hold(WHOLE)).held) == list(WHOLE)


async def test_a_member_of_an_older_generation_gains_nothing():
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        b.generation = 5
        await b.hold(UPPER)

        part = await a.hold(LOWER)

        assert (part.held, part.superseded) == ((), True)


async def test_after_a_restart_claims_count_and_their_leases_begin_anew():
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        held = (await a.hold(LOWER)).held
        await w.clock.advance((LEASE_MS - 1) / 1000)
        await w.restart()
        w.again(a), w.again(b)

        blocked = await b.hold(WHOLE)
        await w.clock.advance((LEASE_MS - 1) / 1000)
        kept = await a.hold(LOWER)

        assert pairs(blocked.held) == list(UPPER)
        assert kept.held == held
        assert await a.commit((0, 5)) == (5, 0, 5)


async def test_epochs_go_on_after_a_restart():
    async with cooperative() as w:
        a = w.member("a")
        first = await a.hold(WHOLE)
        await a.leaves()
        await w.restart()

        assert (await w.again(a).hold(WHOLE)).held[0].epoch > first.held[0].epoch


async def test_members_that_race_for_a_partition_never_both_hold_a_key():
    async with cooperative() as w:
        members = [w.member(name) for name in "abcdefgh"]
        for _ in range(5):
            parts = await asyncio.gather(*(member.hold(WHOLE) for member in members))
            assert sum(bool(part.held) for part in parts) == 1
            holder = next(member for member, part in zip(members, parts, strict=True) if part.held)
            await holder.leaves()


async def test_a_lease_that_ends_is_told_to_tools_without_anybody_asking():
    async with cooperative() as w:
        await w.member("a").hold(WHOLE)
        await w.clock.advance(LEASE_MS / 1000 + 1)
        await settle()

        assert (await w.told()).claims == ()
        assert w.server.stats()["cooperative"]["lapsed"] == 1


async def test_tools_see_who_holds_what():
    async with cooperative() as w:
        await w.member("a").hold(((0, QUARTER),))
        await w.member("b").hold(((QUARTER, HASHES),))

        told = await w.told()

        assert [one[:3] for one in told.claims] == [(0, QUARTER, "a"), (QUARTER, HASHES, "b")]
        assert (told.log_start, told.log_end) == (0, 100)


async def test_what_is_granted_comes_with_what_is_committed_and_what_is_kept_without():
    async with cooperative() as w:
        a = w.member("a")
        await a.hold(WHOLE)
        await a.commit((3, 5), (7, 9))

        assert (await a.hold(WHOLE)).ranges is None
        await a.leaves()
        assert (await w.member("b").hold(WHOLE)).ranges.pairs() == [(3, 5), (7, 9)]


async def test_idle_partitions_are_let_go_of_and_come_back_as_they_were():
    async with cooperative() as w:
        a = w.member("a")
        await a.hold(WHOLE)
        await a.commit((0, 5), (7, 9))
        await a.leaves()
        for _ in range(4):
            await w.clock.advance(61)
            await settle()
        figures = w.server.stats()["cooperative"]
        state = await w.state()

        assert figures["partitions"] == []
        assert w.server._cooperative_groups.groups == {}
        assert state == (5, [(7, 9)])
        assert (await a.hold(WHOLE)).stable == 5
