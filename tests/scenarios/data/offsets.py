"""Start offset, log start, isolation (SG-2.2, SG-5.7, SG-9): the O scenarios."""

from tests.scenarios.language import Scenario

SCENARIOS = (
    Scenario(
        id="O01",
        given="""
            config reset=latest
            log 0-4
        """,
        when="""
            fetch M1 => nothing
            log 5-5
        """,
        then="fetch M1 => [5-5]c1",
    ),
    Scenario(
        id="O02",
        given="""
            config reset=earliest
            log 0-4
        """,
        when="fetch M1 => [0-4]c1",
    ),
    Scenario(
        id="O03",
        given="""
            config reset=earliest
            log 0-9
            logstart 5
        """,
        when="fetch M1 => [5-9]c1",
        then="describe => start=5 lag=5",
    ),
    Scenario(
        id="O04",
        on="server",
        given="""
            log 0 ago=7200000
            log 1 ago=1800000
            log 2 ago=0
            config g1 reset=by_duration:PT1H
            config g2 reset=by_duration:PT3H
        """,
        when="""
            fetch g1:M1 => [1-2]c1
            fetch g2:M1 => [0-2]c1
        """,
        then="""
            describe group=g1 => start=1
            describe group=g2 => start=0
        """,
    ),
    Scenario(
        id="O05",
        on="server",
        when="""
            config reset=by_duration:1h => error INVALID_CONFIG
            config reset=by_duration:-PT1H => error INVALID_CONFIG
        """,
        then="config reset=by_duration:PT1H => ok",
    ),
    Scenario(
        id="O06",
        given="""
            config g1 reset=latest
            config g2 reset=earliest
            log 0-4
        """,
        when="""
            fetch g1:M1 => nothing
            fetch g2:M1 => [0-4]c1
        """,
        then="""
            log 5-9
            fetch g1:M1 => [5-9]c1
            fetch g2:M1 => [5-9]c1
        """,
    ),
    Scenario(
        id="O07",
        given="""
            log 0-9 10-19 20-34
            fetch M1 batch=1 => [0-9]c1 [10-19]c1 [20-34]c1
            ack M1 0-9:release => NONE
            logstart 20
        """,
        when="fetch M2 => nothing",
        then="""
            ack M1 10-19:accept => NONE
            fetch M2 => nothing
            describe => start=20 lag=15
            ack M1 20-34:accept => NONE
            describe => start=35 lag=0
        """,
    ),
    *Scenario(
        id="O08",
        given="""
            log 0-9 10-19
            fetch M1 max=10 => [0-9]c1
            logstart 14
        """,
        when="fetch M2 => [14-19]c1",
        then="describe => start=14 lag=6",
        note="Never below the log start; Kafka 4.3.1 hands out the whole batch.",
    ).also(
        on="core",
        when="fetch M2 max=0 => nothing",
        then="describe => start=14 next=14 end=14 complete=0",
        note="",
    ),
    Scenario(
        id="O09",
        given="""
            log 10-14
            fetch M1 => [10-14]c1
            logstart 11
            fetch M2 => nothing
        """,
        when="time 30000",
        then="""
            fetch M2 => [11-14]c2
            describe => start=11 lag=4
        """,
    ),
    Scenario(
        id="O10",
        on="core",
        given="""
            log 2-6 10-14
            fetch M1 log=2-6 => [2-6]c1
            fetch M1 log=10-14 => [10-14]c1
            logstart 12
            fetch M2 => nothing
        """,
        when="ack M1 2-6:release 10-14:release => NONE",
        then="""
            fetch M2 => [12-14]c2
            describe => start=12
        """,
    ),
    Scenario(
        id="O10",
        given="""
            log 2-6 7-9 10-14
            fetch M1 batch=1 => [2-6]c1 [7-9]c1 [10-14]c1
            ack M1 7-9:accept => NONE
            logstart 12
            fetch M2 => nothing
        """,
        when="ack M1 2-6:release 10-14:release => NONE",
        then="""
            fetch M2 => [12-14]c2
            fetch M2 => nothing
            describe => start=12 lag=3
        """,
    ),
    Scenario(
        id="O11",
        given="""
            log 0-4 5-9 10-14 15-19 20-24
            fetch M1 batch=1 => [0-4]c1 [5-9]c1 [10-14]c1 [15-19]c1 [20-24]c1
            ack M1 5-9:accept 15-19:accept => NONE
            logstart 12
            fetch M2 => nothing
        """,
        when="time 30000",
        then="""
            describe => start=12 lag=8
            fetch M2 batch=1 => [12-14]c2 [20-24]c2
        """,
    ),
    Scenario(
        id="O12",
        given="""
            log 0-9 10-19
            fetch M1 batch=1 => [0-9]c1 [10-19]c1
            ack M1 0-9:accept => NONE
            logstart 3
            fetch M2 => nothing
        """,
        when="describe => start=10 lag=10",
        then="ack M1 10-19:accept => NONE",
    ),
    Scenario(
        id="O13",
        given="""
            config isolation=read_committed
            transactions 10 abort_every=5
        """,
        when="consume M1 => records=8",
        then="describe => start=20 lag=0",
    ),
    Scenario(
        id="O14",
        given="""
            config isolation=read_uncommitted
            transactions 10 abort_every=5
        """,
        when="consume M1 => records=10",
        then="describe => start=20 lag=0",
    ),
    *Scenario(
        id="O15",
        on="core",
        given="""
            config isolation=read_committed
            log 10-14x 15-19 20-34 50-57 58-67x 70-74x
        """,
        when="fetch M1 batch=10 => [15-19]c1 [20-49]c1 [50-57]c1 [68-69]c1",
        then="describe => next=75",
    ).also(
        on="server",
        then="""
            log 75-79
            fetch M2 => [75-79]c1
            ack M1 15-57:accept 68-69:gap => NONE
            describe => start=75
        """,
    ),
    Scenario(
        id="O16",
        given="""
            config isolation=read_committed
            log 0-4 5-9o
        """,
        when="""
            fetch M1 => [0-4]c1
            fetch M1 => nothing
            resolve 5-9k
            log 10c
        """,
        then="fetch M1 => [5-10]c1",
    ),
    Scenario(
        id="O17",
        given="""
            config isolation=read_uncommitted
            log 0-4x 5-9
            fetch M1 batch=1 => [0-4]c1 [5-9]c1
            ack M1 0-9:release => NONE
        """,
        when="config isolation=read_committed",
        then="""
            fetch M1 => [5-9]c2
            describe => start=5
        """,
    ),
    *Scenario(
        id="O18",
        on="core",
        given="""
            config isolation=read_committed
            transactions 2000
        """,
        when="consume M1 => records=2000",
        then="describe => start=4000 lag=0",
    ).also(
        on="server",
        slow=True,
    ),
    Scenario(
        id="O19",
        on="server",
        given="log 0-104",
        when="alter 40 => NONE",
        then="""
            describe => start=40 lag=65
            fetch M1 => [40-104]c1
        """,
    ),
    Scenario(
        id="O20",
        on="server",
        given="""
            log 0-4
            fetch M1 => [0-4]c1
            ack M1 0-4:accept => NONE
            describe => start=5 lag=0
            close M1
        """,
        when="delete_offsets t => NONE",
        then="""
            describe => start=-1
            fetch M1 => [0-4]c1
        """,
    ),
    Scenario(
        id="O21",
        on="server",
        given="""
            config reset=latest
            join M1 topics=t => epoch=2 assigned=0
            fetch M1 => nothing
            log 0@0-4
            fetch M1 => [0-4]c1
            partitions t 2
        """,
        when="log 1@0-4",
        then="""
            time 5000
            beat M1 => assigned=0,1
            fetch M1 => 1:[0-4]c1
        """,
    ),
)

LEFT = ()
