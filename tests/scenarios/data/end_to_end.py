"""§9.10 End-to-end."""

from tests.scenarios.language import Scenario

SCENARIOS = (
    Scenario(
        id="E06",
        on="server",
        given="log 0-99*",
        when="""
            fetch M1 max=20 => [0-19]c1
            ack M1 0-9:accept => NONE
            crash
            fetch M1 max=20 => [10-19]c2 [20-29]c1
            ack M1 10-24:accept => NONE
            crash
            fetch M2 max=20 => [25-29]c2 [30-44]c1
            ack M2 25-44:accept => NONE
            restart
            fetch M2 max=20 => [45-64]c1
            restart
            fetch M3 => [45-64]c2 [65-99]c1
            ack M3 45-99:accept => NONE
        """,
        then="""
            fetch M1 => nothing
            describe => start=100 lag=0
        """,
        note="Embedded's leadership moves by the process ending, with or without a word, and another one starting.",
    ),
    Scenario(
        id="E08",
        on="server",
        given="""
            topic t partitions=4
            topic dead partitions=2 fetched=no
            config dead_letters=dead
            log 3@0-9
            fetch M1 => 3:[0-9]c1
        """,
        when="ack M1 3@0-4:reject 3@5-9:accept => 3:NONE",
        then="""
            letters dead => records=5 at=1:5 payload=no offsets=0-4 origin=t-3 counts=1 reason=rejected
            describe 3 => start=10 lag=0
            config copy=true
            log 2@0-1
            fetch M1 => 2:[0-1]c1
            ack M1 2@0-1:reject => 2:NONE
            letters dead partition=0 => records=2 at=0:2 payload=k0=0,k1=1 offsets=0-1 origin=t-2
        """,
    ),
    Scenario(
        id="E09",
        on="server",
        given="""
            topic dead fetched=no
            config dead_letters=dead delivery=2
            log 0-0
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            letters dead => records=0
            fetch M1 => [0-0]c2
        """,
        when="ack M1 0:release => NONE",
        then="""
            letters dead => records=1 reason=limit counts=2
            fetch M1 => nothing
            describe => start=1 lag=0
        """,
    ),
    Scenario(
        id="E10",
        on="server",
        config="auto_dead_letters=false",
        given="""
            config dead_letters=nowhere
            log 0-4
            fetch M1 => [0-4]c1
        """,
        when="ack M1 0-4:reject => NONE",
        then="""
            fetch M1 => nothing
            time 60000
            describe => start=5 lag=0
        """,
        note="The topic's own consent (errors.deadletterqueue.group.enable) is not asked for, naming it is enough. "
        "A topic that is missing and may not be created gets nothing, and the record is archived after five tries.",
    ),
    Scenario(
        id="E11",
        on="server",
        given="""
            topic dead max_bytes=2000 fetched=no
            config dead_letters=dead
            log 0-499
            fetch M1 => [0-499]c1
        """,
        when="ack M1 0-499:reject => NONE",
        then="""
            letters dead => records=500 offsets=0-499
            describe => start=500 lag=0
        """,
    ),
)

LEFT = ()
