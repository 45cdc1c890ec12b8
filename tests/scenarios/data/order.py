"""Groups that deliver in the order of keys, whose turn it is: the H scenarios.

`keys=aab-` gives the records of a log their keys, a letter each; `-`: none. Only the first record of a key that is not
settled, its head, can be acquired; what lies behind it is blocked.
"""

from tests.scenarios.language import Scenario

BY_KEY = "config order=key"

HEADS = (
    # Of each key only the first record is handed out, thinned out of its batch.
    Scenario(
        id="H01",
        given=f"""
            {BY_KEY}
            log 0-5 keys=aabbac
        """,
        when="fetch M1 => [0-0]c1 [2-2]c1 [5-5]c1 records=0-0,2-2,5-5",
        then="""
            fetch M2 => nothing
            describe => start=0 lag=6
        """,
    ),
    # Records without a key have no order.
    Scenario(
        id="H02",
        given=f"""
            {BY_KEY}
            log 0-4 keys=-a-a-
        """,
        when="fetch M1 => [0-2]c1 [4-4]c1 records=0-2,4-4",
        then="""
            ack M1 2:release 4:accept => NONE
            fetch M1 => [2-2]c2
        """,
    ),
    # A header orders the records instead of their keys.
    Scenario(
        id="H03",
        given="""
            config order=header:h
            log 0-4 keys=abcde headers=xx-yx
        """,
        when="fetch M1 => [0-0]c1 [2-3]c1",
        then="""
            ack M1 0:accept => NONE
            fetch M1 => [1-1]c1
        """,
    ),
    # Where a header orders them, keys do not.
    Scenario(
        id="H04",
        given="""
            config order=header:h
            log 0-3 keys=aaaa headers=xyxy
        """,
        when="fetch M1 => [0-1]c1",
        then="""
            ack M1 1:accept => NONE
            fetch M2 => [3-3]c1
        """,
    ),
    # Where a header orders them, records that do not have it are free.
    Scenario(
        id="H05",
        given="""
            config order=header:h
            log 0-3 keys=aaaa
        """,
        when="fetch M1 => [0-3]c1",
    ),
    # The order is the group's: another one of the same log has none.
    Scenario(
        id="H06",
        given="""
            config g1 order=key
            config g2 delivery=5
            log 0-3 keys=aabb
        """,
        when="""
            fetch g1:M1 => [0-0]c1 [2-2]c1
            fetch g2:M1 => [0-3]c1
        """,
        then="""
            ack g2:M1 0-3:accept => NONE
            fetch g1:M2 => nothing
        """,
    ),
    # Two groups with an order do not wait for each other.
    Scenario(
        id="H07",
        given="""
            config g1 order=key
            config g2 order=key
            log 0-1 keys=aa
            fetch g1:M1 => [0-0]c1
        """,
        when="fetch g2:M1 => [0-0]c1",
        then="""
            ack g2:M1 0:accept => NONE
            fetch g2:M1 => [1-1]c1
            fetch g1:M2 => nothing
        """,
    ),
    # An order holds within a partition.
    Scenario(
        id="H08",
        given=f"""
            topic t partitions=2
            {BY_KEY}
            log 0@0-1 1@0-1 keys=aaaa
        """,
        when="fetch M1 => 0:[0-0]c1 1:[0-0]c1",
        then="ack M1 1@0:accept => 1:NONE",
    ),
    # Two keys of one batch are independent.
    Scenario(
        id="H09",
        given=f"""
            {BY_KEY}
            log 0-5 keys=ababab
            fetch M1 => [0-1]c1
        """,
        when="ack M1 1:accept => NONE",
        then="""
            fetch M2 => [3-3]c1 records=3-3
            ack M2 3:accept => NONE
            fetch M2 => [5-5]c1
            ack M2 5:accept => NONE
            describe => start=0 lag=3
        """,
    ),
    # A key's records may lie in many batches.
    Scenario(
        id="H10",
        given=f"""
            {BY_KEY}
            log 0-1 2-3 4-5 keys=abbaab
            fetch M1 => [0-1]c1
        """,
        when="ack M1 0-1:accept => NONE",
        then="""
            fetch M1 => [2-3]c1
            ack M1 2-3:accept => NONE
            fetch M1 => [4-5]c1
        """,
    ),
    # What one member leaves another one takes.
    Scenario(
        id="H11",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aabc
        """,
        when="fetch M1 max=1 => [0-0]c1",
        then="""
            fetch M2 max=1 => [2-2]c1
            fetch M3 => [3-3]c1
            fetch M4 => nothing
        """,
    ),
    # What is written later stands behind what its key has already.
    Scenario(
        id="H12",
        given=f"""
            {BY_KEY}
            log 0 keys=a
            fetch M1 => [0-0]c1
        """,
        when="log 1-2 keys=ab",
        then="""
            fetch M2 => [2-2]c1
            ack M1 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # A key with nothing unsettled begins anew.
    Scenario(
        id="H13",
        given=f"""
            {BY_KEY}
            log 0 keys=a
            fetch M1 => [0-0]c1
            ack M1 0:accept => NONE
        """,
        when="log 1-2 keys=aa",
        then="fetch M2 => [1-1]c1",
    ),
)

LEAVING = (
    # A session that is closed gives its heads back at once.
    Scenario(
        id="H14",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aab
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="close M1",
        then="""
            fetch M2 => [0-0]c2 [2-2]c2
            fetch M2 => nothing
        """,
    ),
    # A lost connection frees no head before its lock lapses.
    Scenario(
        id="H15",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-2 keys=aab
            fetch M1 max=1 => [0-0]c1
        """,
        when="disconnect M1",
        then="""
            fetch M2 => [2-2]c1
            fetch M3 => nothing
            ack M2 2:accept => NONE
            time 15000
            fetch M3 => [0-0]c2
        """,
    ),
    # A member that leaves the group gives its heads back at once.
    Scenario(
        id="H16",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aab
            join M1 topics=t
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="leave M1",
        then="fetch M2 => [0-0]c2 [2-2]c2",
    ),
    # One that is not heard of any more keeps them until its locks lapse.
    Scenario(
        id="H17",
        on="server",
        given=f"""
            {BY_KEY}
            config lock=60000
            log 0-1 keys=aa
            join M1 topics=t
            fetch M1 => [0-0]c1
        """,
        when="""
            time 50000
            beat M1 => error UNKNOWN_MEMBER_ID
            fetch M2 => nothing
        """,
        then="""
            time 10000
            fetch M2 => [0-0]c2
        """,
    ),
    # A lock that lapses makes its head free, and nothing else of its key.
    Scenario(
        id="H18",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-2 keys=aab
            fetch M1 => [0-0]c1 [2-2]c1
            ack M1 2:accept => NONE
            time 14999
            fetch M2 => nothing
        """,
        when="time 1",
        then="""
            fetch M2 => [0-0]c2
            fetch M3 => nothing
        """,
    ),
    # Who acknowledges a head after its lock lapsed frees nothing.
    Scenario(
        id="H19",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            time 15000
            fetch M2 => [0-0]c2
        """,
        when="ack M1 0:accept => INVALID_RECORD_STATE",
        then="""
            fetch M3 => nothing
            ack M2 0:accept => NONE
            fetch M3 => [1-1]c1
        """,
    ),
    # A renewal holds a key up for another lock's time.
    Scenario(
        id="H20",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            time 14999
        """,
        when="ack M1 0:renew => NONE",
        then="""
            time 14999
            fetch M2 => nothing
            ack M1 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # A member that comes or goes moves no key: who holds a head goes on with it.
    Scenario(
        id="H21",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aabb
            join M1 topics=t
            fetch M1 max=1 => [0-0]c1
        """,
        when="""
            join M2 topics=t
            fetch M2 => [2-2]c1
            leave M2
        """,
        then="""
            ack M1 0:accept => NONE
            fetch M1 => [1-1]c1 [2-2]c2
        """,
    ),
)

SCENARIOS = (*HEADS, *LEAVING)

LEFT = ()
