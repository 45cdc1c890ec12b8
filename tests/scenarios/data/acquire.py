"""Acquiring (SG-4, SG-5): the A scenarios."""

from tests.scenarios.language import Scenario

SCENARIOS = (
    Scenario(id="A01", given="log 0-9", when="fetch M1 max=500 => [0-9]c1"),
    Scenario(
        id="A02",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            ack M1 0-9:accept => NONE
            log 10-19
        """,
        when="fetch M1 => [10-19]c1",
    ),
    Scenario(id="A03", given="log 0-4", when="fetch M1 max=10 => [0-4]c1", then="describe => start=0 lag=5"),
    Scenario(
        id="A04",
        on="core",
        given="""
            log 0-24
            fetch M1 log=0-4 => [0-4]c1
        """,
        when="fetch M1 log=0-24 => [5-24]c1",
    ),
    Scenario(
        id="A04",
        given="""
            log 0-24
            fetch M1 max=5 mode=record_limit => [0-4]c1
        """,
        when="fetch M1 => [5-24]c1",
    ),
    Scenario(id="A05", given="log 10-14 15-29 30-44", when="fetch M1 max=10 => [10-29]c1"),
    Scenario(
        id="A06",
        on="server",
        given="log 10-14 15-29 30-44",
        when="fetch M1 max=10 mode=record_limit => [10-19]c1 bytes=10-29",
        then="fetch M1 max=5 mode=record_limit => [20-24]c1",
    ),
    Scenario(
        id="A06",
        on="core",
        given="log 10-14 15-29 30-44",
        when="fetch M1 max=10 mode=record_limit => [10-19]c1",
        then="""
            describe => next=20
            fetch M1 max=5 mode=record_limit => [20-24]c1
        """,
    ),
    Scenario(
        id="A07",
        given="log 0-9",
        when="""
            fetch M1 max=5 mode=record_limit => [0-4]c1
            fetch M2 max=5 mode=record_limit => [5-9]c1
        """,
    ),
    Scenario(id="A08", given="log 10-14 15-19 20-24", when="fetch M1 max=20 batch=2 mode=record_limit => [10-24]c1"),
    Scenario(
        id="A09",
        given="""
            log 0-4
            fetch M1 max=3 mode=record_limit => [0-2]c1
            log 5-9
        """,
        when="fetch M1 max=3 mode=record_limit => [3-4]c1 [5-5]c1",
    ),
    Scenario(
        id="A10",
        on="core",
        given="""
            log 0-9 10-14 15-20
            reload 5 15-20R3
        """,
        when="fetch M1 max=10 mode=record_limit log=0-9 => [5-9]c1",
    ),
    Scenario(id="A11", given="log 0-4", when="fetch M1 batch=2 => [0-4]c1"),
    Scenario(
        id="A12",
        given="log 2-6 10-14 15-21 22-27",
        when="fetch M1 batch=5 => [2-9]c1 [10-14]c1 [15-21]c1 [22-27]c1",
    ),
    Scenario(id="A13", given="log 0-4 5-19 20-34", when="fetch M1 batch=2 max=10 => [0-4]c1 [5-19]c1"),
    Scenario(id="A14", given="log 0-9*", when="fetch M1 max=1 batch=1 => [0-0]c1"),
    Scenario(id="A15", given="log 0-9*", when="fetch M1 max=5 batch=1 => [0-0]c1 [1-1]c1 [2-2]c1 [3-3]c1 [4-4]c1"),
    Scenario(
        id="A16",
        on="core",
        given="""
            log 0-9
            fetch M1 log=0-9 => [0-9]c1
        """,
        when="fetch M2 log=0-9 => nothing",
    ),
    Scenario(
        id="A16",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
        """,
        when="fetch M2 => nothing",
    ),
    *Scenario(
        id="A17",
        given="""
            config locks=20
            log 0-9
            fetch M1 => [0-9]c1
            log 10-14 15-24 25-34
        """,
        when="fetch M1 => [10-24]c1",
        then="""
            fetch M1 => nothing
            fetch M2 => nothing
        """,
    ).also(
        on="server",
        given="""
            config locks=100
            log 0-49
            fetch M1 => [0-49]c1
            log 50-74 75-124 125-174
        """,
        when="fetch M1 => [50-124]c1",
    ),
    *Scenario(
        id="A18",
        given="""
            config locks=20
            log 0-9
            fetch M1 => [0-9]c1
            log 10-14 15-24 25-34
            fetch M1 => [10-24]c1
        """,
        when="""
            ack M1 15-19:release => NONE
            fetch M1 => [15-19]c2
        """,
        then="fetch M1 => nothing",
    ).also(
        on="server",
        given="""
            config locks=100
            log 0-49
            fetch M1 => [0-49]c1
            log 50-74 75-124 125-174
            fetch M1 => [50-124]c1
        """,
        when="""
            ack M1 75-99:release => NONE
            fetch M1 => [75-99]c2
        """,
    ),
    *Scenario(
        id="A19",
        given="""
            config locks=20
            log 0-19 20-29
            fetch M1 => [0-19]c1
        """,
        when="ack M1 10-14:reject => NONE",
        then="fetch M1 => nothing",
    ).also(
        on="server",
        given="""
            config locks=100
            log 0-99 100-149
            fetch M1 => [0-99]c1
        """,
        when="ack M1 50-74:reject => NONE",
    ),
    *Scenario(
        id="A20",
        given="""
            config locks=20
            log 0-19 20-29*
            fetch M1 => [0-19]c1
        """,
        when="ack M1 0-4:accept => NONE",
        then="""
            fetch M1 => [20-24]c1
            fetch M1 => nothing
        """,
    ).also(
        on="server",
        given="""
            config locks=100
            log 0-99 100-109*
            fetch M1 => [0-99]c1
        """,
        then="""
            fetch M1 => [100-104]c1
            fetch M1 => nothing
        """,
    ),
    Scenario(
        id="A21",
        on="core",
        given="""
            config locks=30
            log 0-29 30-40
            fetch M1 log=0-29 => [0-29]c1
            ack M1 20:release => NONE
        """,
        when="fetch M1 log=20-40 => [20-20]c2",
        then="fetch M1 log=20-40 => nothing",
    ),
    *Scenario(
        id="A21",
        given="""
            config locks=30
            log 0-29 30-40
            fetch M1 => [0-29]c1
            ack M1 20:release => NONE
        """,
        when="fetch M1 => [20-20]c2",
        then="fetch M1 => nothing",
    ).also(
        on="server",
        given="""
            config locks=100
            log 0-99 100-140
            fetch M1 => [0-99]c1
            ack M1 20:release => NONE
        """,
        when="fetch M1 => [20-20]c2",
    ),
    Scenario(
        id="A22",
        given="log 0-9",
        when="""
            fetch M1 max=3 mode=record_limit => [0-2]c1
            fetch M2 max=3 mode=record_limit => [3-5]c1
            fetch M3 max=4 mode=record_limit => [6-9]c1
        """,
    ),
    Scenario(
        id="A22",
        on="server",
        given="""
            a& fetch M1 max=3 mode=record_limit wait=500
            b& fetch M2 max=3 mode=record_limit wait=500
            c& fetch M3 max=4 mode=record_limit wait=500
        """,
        when="log 0-9",
        then="""
            await a => [0-2]c1
            await b => [3-5]c1
            await c => [6-9]c1
        """,
    ),
    Scenario(
        id="A23",
        given="log 0-9",
        when="""
            fetch g1:M1 => [0-9]c1
            fetch g2:M1 => [0-9]c1
            fetch g3:M1 => [0-9]c1
        """,
    ),
    Scenario(
        id="A24",
        given="""
            topic t partitions=2
            log 0@0-9 1@0-9
        """,
        when="fetch M1 max=10 => 0:[0-9]c1",
        then="fetch M1 max=10 => 1:[0-9]c1",
    ),
    Scenario(
        id="A25",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            ack M1 5-9:release => NONE
            log 10-19
        """,
        when="fetch M1 => [5-9]c2 [10-19]c1 or [5-9]c2",
    ),
    *Scenario(
        id="A26",
        on="core",
        given="""
            log 0-4 5-15 16-25
            reload 5 5-10A2 11-15R3
        """,
        when="describe => start=5 next=5 complete=5",
    ).also(
        on="core server",
        when="fetch M1 => [5-10]c3 [16-25]c1",
        then="describe => start=5 lag=16",
    ),
    *Scenario(
        id="A27",
        on="core",
        given="""
            log 10-49
            reload 10 15-20K1 21-30R2
        """,
        when="describe => complete=16 next=10 start=10",
    ).also(
        on="core server",
        when="fetch M1 => [10-14]c1 [31-49]c1",
        then="describe => start=10 lag=24",
    ),
    Scenario(
        id="A28",
        given="""
            log 10-49
            reload 10 15-18A2 20-22R2 26-30A1
        """,
        when="fetch M1 max=1 => [10-14]c1",
    ),
    Scenario(
        id="A29",
        given="""
            log 10-49
            reload 10 15-18A2 20-22R2 26-30A1
            fetch M1 max=1 => [10-14]c1
        """,
        when="fetch M1 max=10 => [15-18]c3 [19-19]c1 [23-25]c1 [26-30]c2",
        then="fetch M1 max=1 => [31-49]c1",
    ),
    Scenario(
        id="A30",
        on="core",
        given="""
            log 0-5 6-21
            reload 5 15-20A1
        """,
        when="fetch M1 log=6-21 => [6-14]c1 [15-20]c2 [21-21]c1",
    ),
    Scenario(
        id="A30",
        given="""
            log 0-21
            reload 5 15-20A1
        """,
        when="fetch M1 => [5-14]c1 [15-20]c2 [21-21]c1",
    ),
    *Scenario(
        id="A31",
        on="core",
        given="""
            log 0-799
            reload 233 233-500K1 501-733R2
        """,
        when="describe => start=734 next=734 complete=0 lag=66",
        then="state => nothing",
    ).also(
        on="core server",
        when="fetch M1 => [734-799]c1",
        then="describe => start=734 lag=66",
    ),
    Scenario(
        id="A32",
        on="core",
        when="""
            reload 10 5-12A1 => error UNKNOWN_SERVER_ERROR
            reload 10 12-11A1 => error UNKNOWN_SERVER_ERROR
        """,
        then="reload 10 10-12A1 => ok",
    ),
    Scenario(
        id="A32",
        on="server",
        given="""
            log 0-19
            reload 10 5-12A1
        """,
        when="fetch M1 => error UNKNOWN_SERVER_ERROR",
        then="""
            fetch M1 => error UNKNOWN_SERVER_ERROR
            reload 10 10-12A1
            time 10000
            fetch M1 => [10-12]c2 [13-19]c1
        """,
    ),
    *Scenario(
        id="A33",
        on="core",
        given="""
            log 11-25 26-35
            reload 11 11-20A2 31-35R1
        """,
        when="fetch M1 log=11-25 => [11-20]c3 [21-25]c1",
        then="describe => next=26",
    ).also(
        when="fetch M1 max=8 log=11-25 => [11-20]c3",
        then="",
    ),
    Scenario(
        id="A34",
        on="core",
        given="""
            log 16-20 31-40 51-60
            fetch M1 log=16-20 => [16-20]c1
            fetch M1 log=31-40 => [31-40]c1
            fetch M1 log=51-60 => [51-60]c1
        """,
        when="ack M1 16-20:accept => NONE",
        then="describe => start=31",
    ),
    Scenario(
        id="A35",
        given="""
            log 0-4 5-9 10-14
            fetch M1 batch=5 => [0-4]c1 [5-9]c1 [10-14]c1
            ack M1 0-4:accept 5-9:release 10-14:accept => NONE
            log 15-19
            compact 5-9 10-14
        """,
        when="fetch M1 => [15-19]c1",
        then="describe => start=15 lag=5",
    ),
    Scenario(id="A36", on="server", given="log 0-9*", when="fetch M1 bytes=1 => [0-0]c1"),
    Scenario(
        id="A37",
        on="server",
        when="""
            f& fetch M1 wait=500 min=1
            time 499
            await f => pending
            time 1
            await f => nothing
        """,
        then="""
            f& fetch M1 wait=500 min=1
            time 200
            await f => pending
            log 0-9
            await f => [0-9]c1 waited=200
        """,
    ),
    Scenario(
        id="A38",
        on="server",
        given="""
            config locks=10
            log 0-9 10-19
            fetch M1 => [0-9]c1
            f& fetch M2 wait=10000
            await f => pending
        """,
        when="ack M1 0-9:accept => NONE",
        then="await f => [10-19]c1 waited=0",
    ),
    Scenario(
        id="A38",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            f& fetch M2 wait=10000
            await f => pending
        """,
        when="ack M1 0-9:release => NONE",
        then="await f => [0-9]c2 waited=0",
        note="A release wakes a parked fetch at once; Kafka 4.3.1 lets it wait for MaxWait.",
    ),
    Scenario(
        id="A38",
        on="server",
        given="""
            config locks=100
            log 0-99 100-109
            fetch M1 => [0-99]c1
            f& fetch M2 wait=10000
            await f => pending
        """,
        when="ack M1 0-99:accept => NONE",
        then="await f => [100-109]c1 waited=0",
    ),
    Scenario(
        id="A39",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            f& fetch M2 wait=60000
            time 29999
            await f => pending
        """,
        when="time 1",
        then="await f => [0-9]c2",
    ),
)

LEFT = ()
