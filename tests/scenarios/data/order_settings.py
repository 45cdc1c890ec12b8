"""Groups that deliver in the order of keys, their limits and settings: the N scenarios."""

from tests.scenarios.language import Scenario

BY_KEY = "config order=key"

LIMITING = (
    # A stuck key bounds how far the others run: as far as the window goes.
    Scenario(
        id="N01",
        given=f"""
            {BY_KEY}
            config window=100
            log 0-99 100-149 keys=aa-*148
            fetch M1 max=1 => [0-0]c1
            fetch M2 => [2-99]c1
            ack M2 2-99:accept => NONE
        """,
        when="fetch M2 => nothing",
        then="""
            describe => start=0 lag=52
            ack M1 0:accept => NONE
            fetch M2 => [1-1]c1 [100-149]c1
        """,
    ),
    # Blocked records take no record locks.
    Scenario(
        id="N02",
        given=f"""
            {BY_KEY}
            config locks=3 window=100
            log 0-7 keys=aaaaabcd
        """,
        when="fetch M1 => [0-0]c1 [5-6]c1",
        then="""
            fetch M2 => nothing
            ack M1 5:accept => NONE
            fetch M2 => [7-7]c1
        """,
    ),
    # A group's limit of records in flight counts heads and chains.
    Scenario(
        id="N03",
        given=f"""
            {BY_KEY}
            config in_flight=2
            log 0-4 keys=aaabc
        """,
        when="fetch M1 heads=1 chain=3 => [0-1]c1",
        then="""
            fetch M2 => nothing
            ack M1 0:accept => NONE
            fetch M2 => [3-3]c1
        """,
    ),
    # Who was kept from a head by the group's limit gets the next that becomes free.
    Scenario(
        id="N04",
        on="server",
        given=f"""
            {BY_KEY}
            config in_flight=2
            log 0-5 keys=aabbcd
            fetch M1 => [0-0]c1 [2-2]c1
            f& fetch M2 wait=10000
            await f => pending
        """,
        when="ack M1 0:accept => NONE",
        then="""
            await f => [1-1]c1
            fetch M1 => nothing
        """,
    ),
    # While a member waits for the limit, who holds more gets nothing.
    Scenario(
        id="N05",
        on="core",
        given=f"""
            {BY_KEY}
            config in_flight=2
            log 0-5 keys=aabbcd
            fetch M1 => [0-0]c1 [2-2]c1
            fetch M2 => nothing
            ack M1 0:accept => NONE
        """,
        when="fetch M1 => nothing",
        then="""
            fetch M2 => [1-1]c1
            fetch M1 => nothing
        """,
    ),
    Scenario(
        id="N05",
        on="server",
        given=f"""
            {BY_KEY}
            config in_flight=2
            log 0-5 keys=aabbcd
            fetch M1 => [0-0]c1 [2-2]c1
            a& fetch M1 wait=20000
            b& fetch M2 wait=20000
        """,
        when="ack M1 0:accept epoch=2 => NONE",
        then="""
            await b => [1-1]c1
            await a => pending
        """,
    ),
    # Who waits and holds nothing comes before who waits for another key.
    Scenario(
        id="N24",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-3 keys=abab
            fetch M1 max=1 => [0-0]c1
            fetch M2 max=1 => [1-1]c1
            a& fetch M1 wait=20000
            await a => pending
            b& fetch M3 wait=20000
            await b => pending
        """,
        when="ack M2 1:accept => NONE",
        then="""
            await b => [3-3]c1
            await a => pending
        """,
    ),
    # A key each is left for those that wait.
    Scenario(
        id="N25",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-0 keys=a
            fetch M1 => [0-0]c1
            a& fetch M2 wait=20000
            await a => pending
            b& fetch M3 wait=20000
            await b => pending
        """,
        when="log 1-3 keys=bcd",
        then="""
            await a => [1-2]c1
            await b => [3-3]c1
        """,
    ),
    # A head that two processes died with comes alone, to one member, and bounds no other key.
    Scenario(
        id="N06",
        given=f"""
            {BY_KEY}
            config lock=30000
            log 0-3 keys=abab
            fetch M1 max=1 => [0-0]c1
            disconnect M1
            time 30000
            fetch M2 max=1 => [0-0]c2
            disconnect M2
            time 30000
        """,
        when="fetch M3 => [0-0]c3",
        then="""
            fetch M3 => nothing
            fetch M4 => [1-1]c1
            ack M3 0:accept => NONE
            fetch M4 => [2-2]c1
        """,
    ),
    # A suspect that is no head bounds nobody.
    Scenario(
        id="N07",
        given=f"""
            {BY_KEY}
            config lock=30000
            log 0-3 keys=aabb
            fetch M1 max=1 => [0-0]c1
            ack M1 0:accept => NONE
            fetch M1 max=1 => [1-1]c1
            disconnect M1
            time 30000
        """,
        when="fetch M2 max=1 => [1-1]c2",
        then="""
            disconnect M2
            fetch M3 => [2-2]c1
            ack M3 2:accept => NONE
            fetch M3 => [3-3]c1
        """,
    ),
    # A group that is paused hands out no head; what is held can be settled.
    Scenario(
        id="N08",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aabb
            fetch M1 max=1 => [0-0]c1
            config paused=true
        """,
        when="""
            fetch M2 => nothing
            ack M1 0:accept => NONE
            fetch M2 => nothing
        """,
        then="""
            config paused=false
            fetch M2 => [1-2]c1
        """,
    ),
)

SETTING = (
    # Redeliveries come first unless a group says otherwise; where all is to be had both come.
    Scenario(
        id="N09",
        given=f"""
            {BY_KEY}
            log 0-3 keys=abcd
            fetch M1 max=2 => [0-1]c1
            ack M1 1:release => NONE
        """,
        when="fetch M2 max=1 => [1-1]c2",
        then="fetch M2 max=1 => [2-2]c1",
    ),
    # New records may come first, in the order of their keys.
    Scenario(
        id="N10",
        given=f"""
            {BY_KEY}
            config priority=new
            log 0-4 keys=abbcb
            fetch M1 max=2 => [0-1]c1
            ack M1 0:release => NONE
        """,
        when="fetch M2 max=1 => [3-3]c1",
        then="""
            ack M1 1:accept => NONE
            fetch M2 => [2-2]c1
            fetch M2 => [0-0]c2
        """,
    ),
    # Or both by turns.
    Scenario(
        id="N11",
        given=f"""
            {BY_KEY}
            config priority=mixed
            log 0-5 keys=abcdee
            fetch M1 max=2 => [0-1]c1
            ack M1 0-1:release => NONE
        """,
        when="""
            fetch M2 max=1 => [2-2]c1
            fetch M2 max=1 => [0-0]c2
            fetch M2 max=1 => [3-3]c1
            fetch M2 max=1 => [1-1]c2
        """,
        then="fetch M2 => [4-4]c1",
    ),
    # So many records come as are asked for, however they are asked for: batches do not count.
    Scenario(
        id="N12",
        given=f"""
            {BY_KEY}
            log 0-3 4-7 keys=abcdefgh
        """,
        when="""
            fetch M1 max=2 mode=batch_optimized => [0-1]c1
            fetch M1 max=3 mode=record_limit => [2-4]c1
        """,
        then="fetch M2 batch=1 => [5-7]c1",
    ),
    # What an answer has no room for goes back, and costs no delivery.
    Scenario(
        id="N13",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-1 2-3 keys=abcd
        """,
        when="fetch M1 bytes=80 => [0-1]c1 records=0-1",
        then="fetch M2 => [2-3]c1",
    ),
    # Ranges without their records are not to be had of an ordered group.
    Scenario(
        id="N14",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-1 keys=ab
        """,
        when="fetch M1 bytes=0 => error INVALID_REQUEST",
        then="fetch M2 => [0-1]c1",
    ),
    # The order does not change while records are held.
    Scenario(
        id="N15",
        on="server",
        given="""
            log 0-3 keys=aabb
            fetch M1 => [0-3]c1
        """,
        when="config order=key => error NON_EMPTY_GROUP",
        then="""
            ack M1 0-3:release => NONE
            close M1
            config order=key => ok
            fetch M2 => [0-0]c2 [2-2]c2
        """,
    ),
    # Nor while one waits for its delay to end.
    Scenario(
        id="N16",
        on="server",
        given="""
            log 0-1 keys=aa
            fetch M1 => [0-1]c1
            ack M1 0:release~15000 1:release => NONE
            close M1
        """,
        when="config order=key => error NON_EMPTY_GROUP",
        then="""
            time 15000
            config order=key => ok
            fetch M2 => [0-0]c2
        """,
    ),
    # Nor while the group has members.
    Scenario(
        id="N17",
        on="server",
        given="""
            log 0-1 keys=aa
            join M1 topics=t
        """,
        when="config order=key => error NON_EMPTY_GROUP",
        then="""
            leave M1
            config order=key => ok
            fetch M2 => [0-0]c1
        """,
    ),
    # The order that a group has already may be set at any time.
    Scenario(
        id="N18",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
        """,
        when="""
            config order=key => ok
            config order=header:h => error NON_EMPTY_GROUP
            config order= => error NON_EMPTY_GROUP
        """,
        then="""
            fetch M2 => nothing
            ack M1 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # An order that there is not is refused.
    Scenario(
        id="N19",
        on="server",
        given="log 0-1 keys=aa",
        when="""
            config order=value => error INVALID_CONFIG
            config order=header: => error INVALID_CONFIG
        """,
        then="fetch M1 => [0-1]c1",
    ),
    # A group that is given an order keeps its backlog, and what was delivered of it stays counted.
    Scenario(
        id="N20",
        given="""
            log 0-4 keys=aabba
            fetch M1 => [0-4]c1
            ack M1 0:release 1:accept 2-4:release => NONE
            close M1
        """,
        when="config order=key",
        then="""
            fetch M2 => [0-0]c2 [2-2]c2
            ack M2 0:accept => NONE
            fetch M2 => [4-4]c2
        """,
    ),
    # One whose order is taken away hands out what was blocked.
    Scenario(
        id="N21",
        given=f"""
            {BY_KEY}
            log 0-4 keys=aabba
            fetch M1 => [0-0]c1 [2-2]c1
            ack M1 0:release 2:accept => NONE
            close M1
        """,
        when="config order=",
        then="fetch M2 => [0-0]c2 [1-1]c1 [3-4]c1",
    ),
    # A group changes from one order to another.
    Scenario(
        id="N22",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aabb headers=xyxy
            fetch M1 => [0-0]c1 [2-2]c1
            ack M1 0:release 2:release => NONE
            close M1
        """,
        when="config order=header:h",
        then="fetch M2 => [0-0]c2 [1-1]c1",
    ),
    # flowshare's consumers are given a key's records one after the other.
    Scenario(
        id="N23",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aabb
            consumer C1 mode=explicit
            poll C1 => 0-0,2-2
        """,
        when="""
            acknowledge C1 0:accept 2:release => ok
            commit C1 => ok
        """,
        then="poll C1 => 1-2 counts=1,2",
    ),
)

SCENARIOS = (*LIMITING, *SETTING)

LEFT = ()
