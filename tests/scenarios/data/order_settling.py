"""Groups that deliver in the order of keys, what becomes of a head and of its key: the T scenarios."""

from tests.scenarios.language import Scenario

BY_KEY = "config order=key"

SCENARIOS = (
    # The next of a key comes when its head is accepted.
    Scenario(
        id="T01",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aaa
            fetch M1 => [0-0]c1
        """,
        when="ack M1 0:accept => NONE",
        then="""
            fetch M2 => [1-1]c1
            describe => start=1 lag=2
        """,
    ),
    # The next of a key comes when its head is rejected.
    Scenario(
        id="T02",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aab
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="ack M1 0:reject => NONE",
        then="""
            fetch M2 => [1-1]c1
            describe => start=1 lag=2
        """,
    ),
    # A gap settles a head, too.
    Scenario(
        id="T03",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
        """,
        when="ack M1 0:gap => NONE",
        then="fetch M2 => [1-1]c1",
    ),
    # A head that is given back comes again itself.
    Scenario(
        id="T04",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aab
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="ack M1 0:release => NONE",
        then="""
            fetch M2 => [0-0]c2
            fetch M3 => nothing
        """,
    ),
    # An attempt that was not made is given back with its head.
    Scenario(
        id="T05",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
        """,
        when="ack M1 0:release! => NONE",
        then="fetch M2 => [0-0]c1",
    ),
    # A retry with a delay holds up its key, and nobody else's.
    Scenario(
        id="T06",
        given=f"""
            {BY_KEY}
            log 0-3 keys=aabb
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="ack M1 0:release~15000 2:accept => NONE",
        then="""
            fetch M2 => [3-3]c1
            fetch M3 => nothing
            time 15000
            fetch M3 => [0-0]c2
            ack M3 0:accept => NONE
            fetch M3 => [1-1]c1
        """,
    ),
    # A head that has used up its deliveries lets its key go on.
    Scenario(
        id="T07",
        given=f"""
            {BY_KEY}
            config delivery=2
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
        """,
        when="ack M1 0:release => NONE",
        then="""
            fetch M1 => [1-1]c1
            describe => start=1 lag=1
        """,
    ),
    # So does one whose last lock lapses.
    Scenario(
        id="T08",
        given=f"""
            {BY_KEY}
            config delivery=2 lock=15000
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
        """,
        when="time 15000",
        then="fetch M2 => [1-1]c1",
    ),
    # A record with one delivery left comes alone; what it holds up is its key.
    Scenario(
        id="T09",
        given=f"""
            {BY_KEY}
            config delivery=3
            log 0-3 keys=aabb
            fetch M1 max=1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 max=1 => [0-0]c2
            ack M1 0:release => NONE
        """,
        when="fetch M1 => [0-0]c3",
        then="""
            fetch M2 => [2-2]c1
            ack M1 0:release => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # Who waits is woken by the settling of a head.
    Scenario(
        id="T10",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            f& fetch M2 wait=10000
            await f => pending
        """,
        when="ack M1 0:accept => NONE",
        then="await f => [1-1]c1 waited=0",
    ),
    # And by the end of its delay.
    Scenario(
        id="T21",
        on="server",
        given=f"""
            {BY_KEY}
            config lock=60000
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            ack M1 0:release~15000 => NONE
            f& fetch M2 wait=60000
            await f => pending
        """,
        when="time 15000",
        then="""
            await f => [0-0]c2
            fetch M3 => nothing
        """,
    ),
    # And by a lock that lapses.
    Scenario(
        id="T22",
        on="server",
        given=f"""
            {BY_KEY}
            config lock=15000
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            f& fetch M2 wait=60000
            await f => pending
        """,
        when="time 15000",
        then="""
            await f => [0-0]c2
            fetch M3 => nothing
        """,
    ),
    # A fetch that carries the acknowledgement of a head brings the next of its key.
    Scenario(
        id="T11",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aab
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="fetch M1 ack=0-0:accept => ack NONE [1-1]c1",
        then="fetch M1 ack=1-1:accept;2-2:accept => ack NONE",
    ),
    # What comes behind an accept that is not durable yet is acquired, and leaves when that is.
    Scenario(
        id="T12",
        on="core",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            persister hold
            a& ack M1 0:accept
        """,
        when="fetch M2 => [1-1]c1",
        then="""
            settle ok
            await a => NONE
            persister ok
            ack M2 1:accept => NONE
            describe => start=2 lag=0
        """,
    ),
    Scenario(
        id="T12",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            persister hold
            a& ack M1 0:accept
        """,
        when="f& fetch M2 wait=10000",
        then="""
            await f => pending
            settle ok
            await a => NONE
            persister ok
            await f => [1-1]c1
            ack M2 1:accept => NONE
            describe => start=2 lag=0
        """,
    ),
    # If it could not be written, what was acquired behind it goes back behind it.
    Scenario(
        id="T23",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            persister hold
            a& ack M1 0:accept
            f& fetch M2 wait=10000
        """,
        when="settle fail",
        then="""
            persister ok
            await f => error KAFKA_STORAGE_ERROR
            fetch M2 => nothing
            ack M1 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # Who waits is woken before the accept is written.
    Scenario(
        id="T24",
        on="server",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            f& fetch M2 wait=10000
            await f => pending
            persister hold
            a& ack M1 0:accept
        """,
        when="settle fail",
        then="""
            persister ok
            await f => error KAFKA_STORAGE_ERROR
            ack M1 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # An accept that could not be written frees nothing either.
    Scenario(
        id="T13",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            persister hold
            a& ack M1 0:accept
        """,
        when="settle fail",
        then="""
            persister ok
            fetch M2 => nothing
            ack M1 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # A head whose dead letter is under way holds up its key.
    Scenario(
        id="T14",
        on="core",
        given=f"""
            {BY_KEY}
            config dead_letters=dead
            log 0-3 keys=aabb
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="ack M1 0:reject 2:accept => NONE",
        then="""
            fetch M2 => [3-3]c1
            fetch M2 => nothing
            archived 0
            fetch M2 => [1-1]c1
        """,
    ),
    Scenario(
        id="T14",
        on="server",
        config="auto_dead_letters=false",
        given=f"""
            {BY_KEY}
            config dead_letters=nowhere
            log 0-3 keys=aabb
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="ack M1 0:reject 2:accept => NONE",
        then="""
            fetch M2 => [3-3]c1
            fetch M3 => nothing
            ack M2 3:accept => NONE
            time 80000
            fetch M3 => [1-1]c1
        """,
        note="A topic that is missing and may not be created gets nothing; the record is archived after five tries.",
    ),
    # A key goes on when the dead letter of its head is written.
    Scenario(
        id="T15",
        on="server",
        given=f"""
            topic dead fetched=no
            {BY_KEY}
            config dead_letters=dead
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
        """,
        when="ack M1 0:reject => NONE",
        then="""
            letters dead => records=1 offsets=0-0
            fetch M2 => [1-1]c1
        """,
    ),
    # What used up its deliveries holds up its key until its dead letter is written.
    Scenario(
        id="T16",
        on="core",
        given=f"""
            {BY_KEY}
            config dead_letters=dead delivery=2
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
            ack M1 0:release => NONE
        """,
        when="fetch M1 => nothing",
        then="""
            archiving => 0-0c2:limit
            archived 0
            fetch M1 => [1-1]c1
        """,
    ),
    Scenario(
        id="T16",
        on="server",
        given=f"""
            topic dead fetched=no
            {BY_KEY}
            config dead_letters=dead delivery=2
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
        """,
        when="ack M1 0:release => NONE",
        then="""
            letters dead => records=1 reason=limit counts=2
            fetch M1 => [1-1]c1
        """,
    ),
    # What is blocked was acquired by nobody: nothing can be said of it.
    Scenario(
        id="T17",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aab
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="""
            ack M1 1:accept => INVALID_RECORD_STATE
            ack M1 1:release => INVALID_RECORD_STATE
            ack M1 1:reject => INVALID_RECORD_STATE
            ack M1 1:gap => INVALID_RECORD_STATE
            ack M1 1:renew => INVALID_RECORD_STATE
        """,
        then="""
            ack M1 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # A range with a blocked record in it is refused whole.
    Scenario(
        id="T18",
        given=f"""
            {BY_KEY}
            log 0-2 keys=aab
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="ack M1 0-2:accept => INVALID_RECORD_STATE",
        then="""
            fetch M2 => nothing
            ack M1 0:accept 2:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # A head is its member's.
    Scenario(
        id="T19",
        given=f"""
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
        """,
        when="ack M2 0:accept => INVALID_RECORD_STATE",
        then="""
            fetch M2 => nothing
            ack M1 0:accept => NONE
            fetch M2 => [1-1]c1
        """,
    ),
    # A head is settled once; the next of its key is not settled with it.
    Scenario(
        id="T20",
        given=f"""
            {BY_KEY}
            log 0-2 keys=baa
            fetch M1 => [0-1]c1
            ack M1 1:accept => NONE
        """,
        when="ack M1 1:accept => INVALID_RECORD_STATE",
        then="fetch M2 => [2-2]c1",
    ),
)

LEFT = ()
