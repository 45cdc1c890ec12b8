"""Groups that deliver in the order of keys, when their leader or their log changes: the R scenarios."""

from tests.scenarios.language import Scenario

BY_KEY = "config order=key"

RELOADING = (
    # What a new leader finds held stays with its member for a lock's time, and holds up its key.
    Scenario(
        id="R01",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-4 keys=aabcb
            reload 0 0-0Q1:M1 1-2A1
        """,
        when="fetch M2 => [2-2]c2 [3-3]c1",
        then="""
            fetch M3 => nothing
            ack M2 2-3:accept => NONE
            fetch M2 => [4-4]c1
            ack M2 4:accept => NONE
            time 15000
            fetch M3 => [0-0]c2
        """,
    ),
    # What it finds settled holds up nothing.
    Scenario(
        id="R02",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aaab
            reload 0 1-1K1
        """,
        when="fetch M1 => [0-0]c1 [3-3]c1",
        then="""
            ack M1 0:accept => NONE
            fetch M1 => [2-2]c1
        """,
    ),
    # It learns which head each key has now.
    Scenario(
        id="R03",
        given=f"""
            {BY_KEY}
            log 0-5 keys=ababab
            reload 1 2-2K1 3-3A2
        """,
        when="fetch M1 => [1-1]c1 [4-4]c1",
        then="""
            ack M1 1:accept => NONE
            fetch M1 => [3-3]c3
        """,
    ),
    # A chain that it finds held comes head by head when its lock has lapsed.
    Scenario(
        id="R04",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-3 keys=aaab
            reload 0 0-1Q1:M1
        """,
        when="fetch M2 chain=4 => [3-3]c1",
        then="""
            ack M2 3:accept => NONE
            time 15000
            fetch M2 chain=4 => [0-0]c2
            ack M2 0:accept => NONE
            fetch M2 chain=4 => [1-1]c2
            ack M2 1:accept => NONE
            fetch M2 chain=4 => [2-2]c1
        """,
    ),
    # What it finds free is not handed out before its keys are learnt, though it is as much as is asked for.
    Scenario(
        id="R21",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aabb
            reload 0 0-3A1
        """,
        when="fetch M1 max=1 => [0-0]c2",
        then="""
            fetch M2 max=2 => [2-2]c2
            ack M1 0:accept => NONE
            fetch M2 max=1 => [1-1]c2
        """,
    ),
    # The last of a group's members is gone, and its lock has lapsed: whoever comes is served.
    Scenario(
        id="R22",
        on="server",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-3 keys=abab
            fetch M1 max=1 => [0-0]c1
            disconnect M1
            time 15000
        """,
        when="restart",
        then="fetch M2 max=1 => [0-0]c2",
    ),
    # A dead letter that it finds under way holds up its key.
    Scenario(
        id="R05",
        on="core",
        given=f"""
            {BY_KEY}
            config dead_letters=dead
            log 0-2 keys=aab
            reload 0 0-0G1
        """,
        when="fetch M1 => [2-2]c1",
        then="""
            archived 0
            fetch M1 => [1-1]c1
        """,
    ),
    Scenario(
        id="R05",
        on="server",
        config="auto_dead_letters=false",
        given=f"""
            {BY_KEY}
            config dead_letters=nowhere
            log 0-2 keys=aab
            reload 0 0-0G1
        """,
        when="fetch M1 => [2-2]c1",
        then="""
            ack M1 2:accept => NONE
            fetch M2 => nothing
            time 80000
            fetch M2 => [1-1]c1
        """,
        note="The dead letter is tried anew: a topic that is missing and may not be created gets nothing.",
    ),
    # A leader that is gone takes no order with it.
    Scenario(
        id="R06",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-4 keys=aabcb
            fetch M1 => [0-0]c1 [2-3]c1
            ack M1 2:accept => NONE
        """,
        when="crash",
        then="""
            fetch M2 => [4-4]c1
            fetch M3 => nothing
            ack M2 4:accept => NONE
            time 15000
            fetch M3 => [0-0]c2 [3-3]c2
        """,
    ),
    # Nor does one that ends in order, though a chain was held.
    Scenario(
        id="R07",
        on="server",
        given=f"""
            {BY_KEY}
            config lock=60000
            log 0-3 keys=aaab
            fetch M1 heads=1 chain=2 => [0-1]c1
        """,
        when="restart",
        then="""
            fetch M2 chain=4 => [3-3]c1
            ack M2 3:accept => NONE
            time 60000
            fetch M2 chain=4 => [0-0]c2
        """,
    ),
    # The start offset is set anew: keys are learnt from there on.
    Scenario(
        id="R08",
        on="core",
        given=f"""
            {BY_KEY}
            log 0-5 keys=ababab
            fetch M1 => [0-1]c1
            ack M1 0:accept 1:release => NONE
        """,
        when="reload 3",
        then="""
            fetch M2 => [3-4]c1
            ack M2 3:accept => NONE
            fetch M2 => [5-5]c1
        """,
    ),
    Scenario(
        id="R08",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-5 keys=ababab
            fetch M1 => [0-1]c1
            ack M1 0:accept 1:release => NONE
            close M1
        """,
        when="alter 3 => NONE",
        then="""
            fetch M2 => [3-4]c1
            ack M2 3:accept => NONE
            fetch M2 => [5-5]c1
            describe => start=4 lag=2
        """,
    ),
    # Set back, they come again in order.
    Scenario(
        id="R09",
        on="core",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aab
            fetch M1 chain=2 => [0-2]c1
            ack M1 0-2:accept => NONE
        """,
        when="reload 0",
        then="""
            fetch M2 => [0-0]c1 [2-2]c1
            ack M2 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    Scenario(
        id="R09",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aab
            fetch M1 chain=2 => [0-2]c1
            ack M1 0-2:accept => NONE
            close M1
        """,
        when="alter 0 => NONE",
        then="""
            fetch M2 => [0-0]c1 [2-2]c1
            ack M2 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
)

LOGS = (
    # A free head that retention takes away lets its key go on.
    Scenario(
        id="R10",
        given=f"""
            {BY_KEY}
            log 0-4 keys=aabab
            fetch M1 max=1 => [0-0]c1
            ack M1 0:release => NONE
            logstart 1
        """,
        when="fetch M2 => [1-2]c1",
        then="describe => start=1 lag=4",
    ),
    # One that was never acquired, too; and what the log has no more is not delivered.
    Scenario(
        id="R11",
        given=f"""
            {BY_KEY}
            log 0-4 keys=aabab
            fetch M1 max=1 => [0-0]c1
            logstart 3
            ack M1 0:accept => NONE
        """,
        when="fetch M2 => [3-4]c1",
        then="describe => start=3 lag=2",
    ),
    # A head that is held holds up its key until it is settled, though the log has it no more.
    Scenario(
        id="R12",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aaba
            fetch M1 max=1 => [0-0]c1
            logstart 2
        """,
        when="""
            fetch M2 => [2-2]c1
            fetch M3 => nothing
        """,
        then="""
            ack M1 0:accept => NONE
            fetch M3 => [3-3]c1
        """,
    ),
    # Or until its lock lapses; then it is gone.
    Scenario(
        id="R13",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-3 keys=aaba
            fetch M1 max=1 => [0-0]c1
            logstart 2
            fetch M2 => [2-2]c1
            ack M2 2:accept => NONE
        """,
        when="time 15000",
        then="""
            fetch M3 => [3-3]c1
            describe => start=3 lag=1
        """,
    ),
    # A head that compaction takes away holds up nothing.
    Scenario(
        id="R14",
        given=f"""
            {BY_KEY}
            log 0-4* keys=aabab
            compact 0
        """,
        when="fetch M1 => [1-2]c1",
        then="""
            ack M1 1:accept => NONE
            fetch M1 => [3-3]c1
        """,
    ),
    # Nor does a blocked one.
    Scenario(
        id="R15",
        given=f"""
            {BY_KEY}
            log 0-3* keys=aaaa
            compact 1-2
        """,
        when="fetch M1 => [0-0]c1",
        then="""
            ack M1 0:accept => NONE
            fetch M1 => [3-3]c1
            ack M1 3:accept => NONE
            describe => start=4
        """,
    ),
    # A head that was learnt and is in the log no more is found out before it is handed out.
    Scenario(
        id="R16",
        given=f"""
            {BY_KEY}
            log 0-3* keys=aabb
            fetch M1 max=1 => [0-0]c1
            ack M1 0:release => NONE
            close M1
            compact 0
            crash
        """,
        when="fetch M2 => [1-2]c1",
        then="describe => start=1 lag=3",
    ),
    # What transactions that were aborted left behind belongs to no key.
    Scenario(
        id="R17",
        given=f"""
            {BY_KEY}
            config isolation=read_committed
            log 0 1-2x 3c 4-5 keys=aab-ab
        """,
        when="fetch M1 => [0-0]c1 [5-5]c1",
        then="""
            ack M1 0:accept => NONE
            fetch M1 => [4-4]c1
            ack M1 4-5:accept => NONE
            describe => start=6 lag=0
        """,
    ),
    # A group that reads them all the same has them in their key's order, and markers hold up nothing.
    Scenario(
        id="R18",
        given=f"""
            {BY_KEY}
            config isolation=read_uncommitted
            log 0 1-2x 3c 4-5 keys=aab-ab
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="ack M1 0:accept 2:accept => NONE",
        then="""
            fetch M1 => [1-1]c1 [5-5]c1
            ack M1 1:accept 5:accept => NONE
            fetch M1 => [4-4]c1
            ack M1 4:accept => NONE
            describe => start=6 lag=0
        """,
    ),
    # What a transaction that was committed wrote stands in its key's order, and its marker is no record.
    Scenario(
        id="R19",
        given=f"""
            {BY_KEY}
            config isolation=read_committed
            log 0 1-2k 3c 4 keys=aab-b
            fetch M1 chain=4 => [0-2]c1 [4-4]c1 records=0-2,4-4
        """,
        when="ack M1 0-2:accept 4:accept => NONE",
        then="describe => start=5 lag=0",
    ),
    # What is behind an open transaction waits for its end.
    Scenario(
        id="R20",
        given=f"""
            {BY_KEY}
            config isolation=read_committed
            log 0-1 2-3o keys=abab
            fetch M1 => [0-1]c1
            ack M1 0:accept => NONE
            fetch M2 => nothing
        """,
        when="""
            resolve 2-3k
            log 4c
        """,
        then="""
            fetch M2 => [2-2]c1
            ack M1 1:accept => NONE
            fetch M2 => [3-3]c1
        """,
    ),
)

SCENARIOS = (*RELOADING, *LOGS)

LEFT = ()
