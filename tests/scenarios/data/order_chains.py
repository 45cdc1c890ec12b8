"""Groups that deliver in the order of keys, several records of a key at once: the C scenarios."""

from tests.scenarios.language import Scenario

BY_KEY = "config order=key"

SCENARIOS = (
    # Who asks for chains is given a key's next records with its head.
    Scenario(
        id="C01",
        given=f"""
            {BY_KEY}
            log 0-5 keys=abacaa
        """,
        when="fetch M1 heads=2 chain=3 => [0-2]c1 [4-4]c1 records=0-2,4-4",
        then="fetch M2 => [3-3]c1",
    ),
    # Who does not ask gets heads alone; so do clients that know no chains.
    Scenario(
        id="C02",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aaab
        """,
        when="fetch M1 version=1 => [0-0]c1 [3-3]c1",
        then="""
            ack M1 0:accept => NONE
            fetch M2 chain=2 => [1-2]c1
        """,
    ),
    # So many keys are begun as are asked for.
    Scenario(
        id="C03",
        given=f"""
            {BY_KEY}
            log 0-4 keys=abcaa
        """,
        when="fetch M1 heads=1 chain=16 => [0-0]c1 [3-4]c1",
        then="fetch M2 heads=1 chain=16 => [1-1]c1",
    ),
    # Heads that may be begun come before what may follow them.
    Scenario(
        id="C04",
        given=f"""
            {BY_KEY}
            log 0-5 keys=aaabbb
        """,
        when="fetch M1 max=3 chain=16 => [0-1]c1 [3-3]c1",
        then="fetch M2 chain=16 => nothing",
    ),
    # A chain has sixteen records at most.
    Scenario(
        id="C05",
        given=f"""
            {BY_KEY}
            log 0-19 keys=a*20
        """,
        when="fetch M1 chain=16 => [0-15]c1",
        then="""
            ack M1 0-15:accept => NONE
            fetch M1 chain=16 => [16-19]c1
        """,
    ),
    # Two members have chains of different keys.
    Scenario(
        id="C06",
        given=f"""
            {BY_KEY}
            log 0-5 keys=aabbcc
        """,
        when="""
            fetch M1 heads=1 chain=2 => [0-1]c1
            fetch M2 heads=1 chain=2 => [2-3]c1
        """,
        then="fetch M3 chain=2 => [4-5]c1",
    ),
    # Records without a key are followed by nothing.
    Scenario(
        id="C07",
        given=f"""
            {BY_KEY}
            log 0-3 keys=-a-a
        """,
        when="fetch M1 heads=1 chain=2 => [0-0]c1",
        then="fetch M1 heads=1 chain=2 => [1-1]c1 [3-3]c1",
    ),
    # A chain goes on over batches.
    Scenario(
        id="C08",
        given=f"""
            {BY_KEY}
            log 0-1 2-3 4 keys=abaca
        """,
        when="fetch M1 heads=1 chain=3 => [0-0]c1 [2-2]c1 [4-4]c1 records=0-0,2-2,4-4",
        then="fetch M2 => [1-1]c1 [3-3]c1",
    ),
    # A chain is acknowledged one after the other.
    Scenario(
        id="C09",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aaaa
            fetch M1 chain=3 => [0-2]c1
        """,
        when="""
            ack M1 0:accept => NONE
            describe => start=1 lag=3
            ack M1 1:accept => NONE
            describe => start=2 lag=2
            fetch M2 => nothing
            ack M1 2:accept => NONE
        """,
        then="fetch M2 => [3-3]c1",
    ),
    # A record of a chain is not accepted before the one before it.
    Scenario(
        id="C10",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aaa
            fetch M1 chain=3 => [0-2]c1
        """,
        when="""
            ack M1 1:accept => INVALID_RECORD_STATE
            ack M1 1-2:accept => INVALID_RECORD_STATE
            ack M1 2:reject => INVALID_RECORD_STATE
            ack M1 2:gap => INVALID_RECORD_STATE
        """,
        then="""
            ack M1 0:accept => NONE
            ack M1 2:accept => INVALID_RECORD_STATE
            ack M1 1:accept => NONE
            ack M1 2:accept => NONE
            describe => start=3 lag=0
        """,
    ),
    # One request may settle a record and the one before it.
    Scenario(
        id="C11",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aaab
            fetch M1 chain=3 => [0-3]c1
        """,
        when="ack M1 0:accept 1:accept 2:accept => NONE",
        then="describe => start=3 lag=1",
    ),
    # So may one range, whatever other keys are in it.
    Scenario(
        id="C12",
        given=f"""
            {BY_KEY}
            log 0-4 keys=ababa
            fetch M1 chain=3 => [0-4]c1
        """,
        when="ack M1 1-4:accept => INVALID_RECORD_STATE",
        then="""
            ack M1 0-4:accept => NONE
            describe => start=5 lag=0
        """,
    ),
    # What follows a rejected record may be accepted with it: that is settled.
    Scenario(
        id="C13",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
        """,
        when="ack M1 0:reject 1:accept => NONE",
        then="describe => start=2 lag=0",
    ),
    # What follows a record that is given back is not accepted with it, and nothing of the request happens.
    Scenario(
        id="C14",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
        """,
        when="""
            ack M1 0:release 1:accept => INVALID_RECORD_STATE
            ack M1 0-1:release,accept => INVALID_RECORD_STATE
        """,
        then="""
            fetch M2 => nothing
            ack M1 0-1:accept => NONE
            describe => start=2 lag=0
        """,
    ),
    # A chain that stops gives its rest back unrun: head by head, and what was not run costs no attempt.
    Scenario(
        id="C15",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aaa
            fetch M1 chain=3 => [0-2]c1
        """,
        when="ack M1 0:release 1-2:release! => NONE",
        then="""
            fetch M2 chain=16 => [0-0]c2
            fetch M3 => nothing
            ack M2 0:accept => NONE
            fetch M2 => [1-1]c1
            ack M2 1:accept => NONE
            fetch M2 => [2-2]c1
        """,
    ),
    # It may stop in the middle.
    Scenario(
        id="C16",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aaaa
            fetch M1 chain=4 => [0-3]c1
        """,
        when="ack M1 0:accept 1:release 2-3:release! => NONE",
        then="""
            describe => start=1 lag=3
            fetch M2 chain=4 => [1-1]c2
            ack M2 1:accept => NONE
            fetch M2 chain=4 => [2-3]c1
        """,
    ),
    # The first record of a chain that is rejected does not take the rest with it.
    Scenario(
        id="C17",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aaa
            fetch M1 chain=3 => [0-2]c1
        """,
        when="ack M1 0:reject 1-2:release! => NONE",
        then="""
            describe => start=1 lag=2
            fetch M2 chain=2 => [1-2]c1
        """,
    ),
    # A delay of a chain's head delays the rest with it, and of the rest nothing but its head.
    Scenario(
        id="C18",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aaab
            fetch M1 chain=3 => [0-3]c1
        """,
        when="ack M1 0:release~15000 1-2:release~15000! 3:accept => NONE",
        then="""
            fetch M2 => nothing
            time 15000
            fetch M2 chain=16 => [0-0]c2
            ack M2 0:accept => NONE
            fetch M2 chain=16 => [1-2]c1
        """,
    ),
    # The rest of a chain may be given back while its head goes on.
    Scenario(
        id="C19",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aaa
            fetch M1 chain=3 => [0-2]c1
        """,
        when="ack M1 1-2:release! => NONE",
        then="""
            fetch M2 => nothing
            ack M1 0:accept => NONE
            fetch M2 chain=2 => [1-2]c1
        """,
    ),
    # A chain whose lock lapses comes head by head, attempts counted.
    Scenario(
        id="C20",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-3 keys=aaab
            fetch M1 chain=3 => [0-3]c1
        """,
        when="time 15000",
        then="""
            fetch M2 chain=16 => [0-0]c2 [3-3]c2
            ack M2 0:accept => NONE
            fetch M2 chain=16 => [1-1]c2
            ack M2 1:accept => NONE
            fetch M2 chain=16 => [2-2]c2
        """,
    ),
    # When what a chain held is settled, its key has chains again.
    Scenario(
        id="C21",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-4 keys=aaaaa
            fetch M1 chain=2 => [0-1]c1
            time 15000
            fetch M2 chain=16 => [0-0]c2
            ack M2 0:accept => NONE
            fetch M2 chain=16 => [1-1]c2
        """,
        when="ack M2 1:accept => NONE",
        then="fetch M2 chain=16 => [2-4]c1",
    ),
    # A lost connection keeps a whole chain until its lock lapses.
    Scenario(
        id="C22",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-2 keys=aaa
            fetch M1 chain=2 => [0-1]c1
        """,
        when="disconnect M1",
        then="""
            fetch M2 chain=2 => nothing
            time 15000
            fetch M2 chain=2 => [0-0]c2
        """,
    ),
    # A session that is closed gives a chain back, head by head.
    Scenario(
        id="C23",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aaa
            fetch M1 chain=2 => [0-1]c1
        """,
        when="close M1",
        then="""
            fetch M2 chain=16 => [0-0]c2
            ack M2 0:accept => NONE
            fetch M2 chain=16 => [1-1]c2
            ack M2 1:accept => NONE
            fetch M2 chain=16 => [2-2]c1
        """,
    ),
    # The locks of a chain are renewed together.
    Scenario(
        id="C24",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
            time 14999
        """,
        when="ack M1 0-1:renew => NONE",
        then="""
            time 14999
            fetch M2 => nothing
            ack M1 0-1:accept => NONE
            describe => start=2 lag=0
        """,
    ),
    # One call may accept a chain's head and renew its rest.
    Scenario(
        id="C25",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-2 keys=aaa
            fetch M1 chain=3 => [0-2]c1
            time 14999
        """,
        when="ack M1 0-2:accept,renew,renew => NONE",
        then="""
            time 14999
            fetch M2 => nothing
            ack M1 1-2:accept => NONE
            describe => start=3 lag=0
        """,
    ),
    # Who renews the rest of a chain keeps its head: the next member would run it beside the rest.
    Scenario(
        id="C26",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
            time 10000
            ack M1 1:renew => NONE
        """,
        when="time 5000",
        then="""
            fetch M2 chain=2 => nothing
            ack M1 0-1:accept => NONE
            describe => start=2 lag=0
        """,
    ),
    # It lapses with it.
    Scenario(
        id="C32",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
            time 10000
            ack M1 1:renew => NONE
        """,
        when="time 15000",
        then="""
            fetch M2 chain=2 => [0-0]c2
            ack M1 1:accept => INVALID_RECORD_STATE
            ack M2 0:accept => NONE
            fetch M2 => [1-1]c2
        """,
    ),
    # What stands behind a dead letter in a chain waits for it.
    Scenario(
        id="C27",
        on="core",
        given=f"""
            {BY_KEY}
            config dead_letters=dead
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
        """,
        when="""
            ack M1 0:reject => NONE
            ack M1 1:accept => INVALID_RECORD_STATE
        """,
        then="""
            archived 0
            ack M1 1:accept => NONE
        """,
    ),
    Scenario(
        id="C27",
        on="server",
        config="auto_dead_letters=false",
        given=f"""
            {BY_KEY}
            config dead_letters=nowhere lock=60000
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
        """,
        when="""
            ack M1 0:reject => NONE
            ack M1 1:accept => INVALID_RECORD_STATE
        """,
        then="""
            time 40000
            ack M1 1:renew => NONE
            time 40000
            ack M1 1:accept => NONE
        """,
        note="A topic that is missing and may not be created gets nothing; the record is archived after five tries.",
    ),
    # What is decided behind a write under way may be settled; if that fails it fails with it.
    Scenario(
        id="C28",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
            persister hold
            a& ack M1 0:accept
            b& ack M1 1:accept
        """,
        when="settle ok",
        then="""
            await a => NONE
            await b => NONE
            describe => start=2 lag=0
        """,
    ),
    # If it fails, what was decided behind it fails with it, and the chain is still its member's.
    Scenario(
        id="C31",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
            persister hold
            a& ack M1 0:accept
            b& ack M1 1:accept
        """,
        when="settle fail",
        then="""
            await a => UNKNOWN_SERVER_ERROR or KAFKA_STORAGE_ERROR
            await b => UNKNOWN_SERVER_ERROR or KAFKA_STORAGE_ERROR
            persister ok
            fetch M2 => nothing
            ack M1 0-1:accept => NONE
            describe => start=2 lag=0
        """,
    ),
    # A chain that was given up in part goes on for other keys.
    Scenario(
        id="C29",
        given=f"""
            {BY_KEY}
            log 0-5 keys=ababab
            fetch M1 chain=3 => [0-5]c1
        """,
        when="ack M1 0:release 2:release! 4:release! => NONE",
        then="""
            ack M1 1:accept => NONE
            ack M1 3:accept 5:accept => NONE
            describe => start=0 lag=3
            fetch M2 chain=3 => [0-0]c2
        """,
    ),
    # A record that reaches its last delivery is in no chain.
    Scenario(
        id="C30",
        given=f"""
            {BY_KEY}
            config delivery=2 lock=15000
            log 0-2 keys=aaa
            fetch M1 chain=3 => [0-2]c1
            time 15000
        """,
        when="fetch M2 chain=3 => [0-0]c2",
        then="""
            ack M2 0:release => NONE
            fetch M2 chain=3 => [1-1]c2
            ack M2 1:release => NONE
            fetch M2 chain=3 => [2-2]c2
        """,
    ),
)

LEFT = ()
