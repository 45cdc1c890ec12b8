"""End to end, dead letters among it (SG-15): the E scenarios."""

from tests.scenarios.language import Scenario

SCENARIOS = (
    Scenario(
        id="E01",
        on="server",
        given="log 0-999 1000-1999",
        when="crowd consumers=4 records=2000 max=50 acquire=record_limit => seen=2000 twice=0 busy=4",
        then="describe group=crowd0 => start=2000 lag=0",
    ),
    Scenario(
        id="E02",
        on="server",
        slow=True,
        given="""
            topic t partitions=2
            log 0@0-4999 0@5000-9999 1@0-4999 1@5000-9999
        """,
        when="crowd groups=3 consumers=3 records=20000 => seen=20000,20000,20000 twice=0",
        then="""
            describe 0 group=crowd0 => start=10000 lag=0
            describe 1 group=crowd1 => start=10000 lag=0
            describe 0 group=crowd2 => start=10000 lag=0
        """,
    ),
    Scenario(
        id="E03",
        on="server",
        given="""
            log 0-9
            consumer C1 mode=explicit
            consumer C2 mode=explicit
            poll C1 => 0-9 counts=1
        """,
        when="kill C1",
        then="""
            poll C2 => 0-9 counts=2
            acknowledge C2 0-9:accept => ok
            commit C2 => ok
            describe => start=10 lag=0
        """,
    ),
    Scenario(
        id="E04",
        on="server",
        given="""
            config delivery=5
            log 0-99
            consumer C1 mode=explicit
        """,
        when="poison C1 offset=37 => accepted=0-36,38-99 times=99 poisoned=5",
        then="describe => start=100 lag=0",
    ),
    Scenario(
        id="E05",
        on="server",
        slow=True,
        given="""
            topic t partitions=4
            log 0@0-79* 1@0-79* 2@0-79* 3@0-79*
        """,
        when="crowd group=few consumers=4 records=320 work=200 max=1 => seen=320 twice=0 busy=4 seconds=16",
        then="crowd group=many consumers=32 records=320 work=200 max=1 => seen=320 twice=0 busy=32 seconds=2",
    ),
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
        id="E07",
        on="server",
        when="etl records=200 stages=3 => ends=50 twice=0 roles=3 deliveries=700",
        then="""
            describe e0.0 group=etl0 => start=200 lag=0
            describe e1.0 group=etl1 => start=150 lag=0
            describe e2.0 group=etl2 => start=100 lag=0
        """,
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
    Scenario(
        id="E11",
        on="server",
        given="""
            topic dead max_bytes=2000 fetched=no
            config dead_letters=dead copy=true
            log 0
            log 1 size=3000
            log 2
        """,
        when="""
            fetch M1 => [0-2]c1
            ack M1 0-2:reject => NONE
        """,
        then="letters dead => records=3 offsets=0-2 payload=k0=0,k2=2",
        note="A record that the topic does not take whole leaves a dead letter without it.",
    ),
    *Scenario(
        id="E12",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            persister hold
            a& ack M1 0-9:accept
        """,
        when="""
            disconnect M1
            settle ok
        """,
        then="""
            fetch M2 => nothing
            describe => start=10 lag=0
        """,
    ).also(
        when="""
            disconnect M1
            settle fail
        """,
        then="fetch M2 => [0-9]c2",
    ),
    Scenario(
        id="E12",
        on="server",
        given="""
            log 0-9
            consumer C1 mode=explicit
            poll C1 => 0-9
            acknowledge C1 0-9:accept => ok
            persister hold
            commit C1 how=async => ok
        """,
        when="""
            bye& close_consumer C1
            settle ok
            await bye => ok
        """,
        then="describe => start=10 lag=0",
    ),
)

LEFT = ()
