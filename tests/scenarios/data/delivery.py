"""Delivery count and throttling (SG-3, SG-6): the D scenarios."""

from tests.scenarios.language import Scenario

SCENARIOS = (
    Scenario(
        id="D01",
        given="""
            config delivery=2
            log 0-9 10-19
            fetch M1 max=10 => [0-9]c1
            ack M1 0-9:release => NONE
            fetch M1 max=10 => [0-9]c2
            ack M1 0-9:release => NONE
        """,
        when="fetch M1 max=500 => [10-19]c1",
        then="describe => start=10",
    ),
    Scenario(
        id="D02",
        given="""
            config delivery=3
            log 0-0
        """,
        when="""
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
            ack M1 0:release => NONE
            fetch M1 => [0-0]c3
            ack M1 0:release => NONE
        """,
        then="""
            fetch M1 => nothing
            describe => start=1 lag=0
        """,
    ),
    *Scenario(
        id="D03",
        given="""
            config delivery=2
            log 10-14
            fetch M1 => [10-14]c1
            ack M1 10-14:release => NONE
            fetch M1 => [10-14]c2
        """,
        when="ack M1 10-14:release => NONE",
        then="describe => start=15 lag=0",
    ).also(
        on="core",
        then="""
            state => nothing
            describe => next=15 complete=0
        """,
    ),
    Scenario(
        id="D04",
        given="""
            log 0-1
            fetch M1 => [0-1]c1
            ack M1 0:release => NONE
        """,
        when="close M1",
        then="collect M2 => [0-1]c2 or [0-0]c2 [1-1]c2",
    ),
    Scenario(
        id="D05",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
        """,
        when="disconnect M1",
        then="fetch M2 => [0-9]c2",
    ),
    Scenario(
        id="D06",
        given="""
            config delivery=5
            log 0-0
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
            ack M1 0:release => NONE
        """,
        when="""
            config delivery=3
            fetch M1 => [0-0]c3
            ack M1 0:release => NONE
        """,
        then="""
            fetch M1 => nothing
            describe => start=1 lag=0
        """,
    ),
    Scenario(
        id="D07",
        given="""
            config delivery=3
            log 0-0
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
            ack M1 0:release => NONE
        """,
        when="""
            config delivery=5
            fetch M1 => [0-0]c3
            ack M1 0:release => NONE
            fetch M1 => [0-0]c4
            ack M1 0:release => NONE
            fetch M1 => [0-0]c5
            ack M1 0:release => NONE
        """,
        then="""
            fetch M1 => nothing
            describe => start=1 lag=0
        """,
    ),
    Scenario(
        id="D08",
        given="""
            config delivery=5
            log 0-99
        """,
        when="exhaust M1 max=500 => sizes=100*3,50,1*50,50,1*50",
        then="describe => start=100 lag=0",
    ),
    Scenario(
        id="D09",
        given="""
            config delivery=10
            log 0-511
        """,
        when="exhaust M1 max=1000 times=10 => sizes=512*5,256,128,64,32,1",
    ),
    *Scenario(
        id="D10",
        given="""
            config delivery=10
            log 0-499
        """,
        when="exhaust M1 max=500 times=10 => sizes=500*5,250,125,62,31,1",
    ).also(
        on="core",
        when="exhaust M1 max=500 => ends_in_order=yes deliveries=10-10 offsets=500",
        then="describe => start=500 lag=0",
        note="Every offset, 124 and 125 too, is delivered for the last time before any later one is.",
    ),
    Scenario(
        id="D11",
        given="""
            config delivery=2
            log 0-99
        """,
        when="exhaust M1 max=500 => sizes=100*2",
    ),
    Scenario(
        id="D12",
        given="""
            config delivery=7
            log 15-34
            reload 15 15-34A4
        """,
        when="exhaust M1 times=3 => sizes=10,5,1",
    ),
    Scenario(
        id="D13",
        on="core",
        given="""
            config delivery=5
            log 7-27 28-30
            reload 5 15-19A2 20-22R2 26-30A3
        """,
        when="fetch M1 max=500 log=7-27 => [7-14]c1 [15-19]c3 [23-25]c1",
        then="fetch M1 max=500 log=7-27 => [26-27]c4",
    ),
    Scenario(
        id="D14",
        given="""
            config delivery=5
            log 0-9
            fetch M1 => [0-9]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
            ack M1 0:release => NONE
            fetch M1 => [0-0]c3
            ack M1 0:release => NONE
            fetch M2 => [0-0]c4
            ack M1 1-9:release => NONE
        """,
        when="fetch M1 => [1-9]c2",
    ),
    Scenario(
        id="D15",
        given="""
            config delivery=5
            log 0-9
            fetch M1 => [0-9]c1
            ack M1 5:release => NONE
            fetch M1 => [5-5]c2
            ack M1 5:release => NONE
            fetch M1 => [5-5]c3
            ack M1 5:release => NONE
            fetch M1 => [5-5]c4
            ack M1 0-9:release => NONE
        """,
        when="""
            fetch M1 => [0-4]c2
            fetch M1 => [5-5]c5
        """,
        then="fetch M1 => [6-9]c2",
    ),
    Scenario(
        id="D16",
        on="core server",
        given="""
            config delivery=2
            log 0-4k 5c
            fetch M1 => [0-5]c1
        """,
        when="ack M1 0-5:accept*5,gap => NONE",
        then="describe => start=6 lag=0",
    ),
)

LEFT = ()
