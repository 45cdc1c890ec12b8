"""Share sessions (SG-10): the S scenarios."""

from tests.scenarios.language import Scenario

SCENARIOS = (
    Scenario(
        id="S01",
        on="server",
        when="""
            fetch M1 epoch=0 => nothing
            fetch M1 epoch=1 => nothing
            fetch M1 epoch=2 => nothing
            fetch M1 epoch=3 => nothing
        """,
    ),
    Scenario(
        id="S01",
        on="core",
        when="""
            session M1 epoch=0 add=0 => partitions=0
            session M1 epoch=1 => partitions=0
            session M1 epoch=2 => partitions=0
            session M1 epoch=3 => partitions=0
        """,
    ),
    Scenario(
        id="S02",
        on="server",
        given="fetch M1 epoch=0 => nothing",
        when="fetch M1 epoch=2 => error INVALID_SHARE_SESSION_EPOCH lock=0",
        then="fetch M1 epoch=1 => nothing",
    ),
    Scenario(
        id="S03",
        on="server",
        given="fetch M1 epoch=0 => nothing",
        when="ack M1 epoch=2 => error INVALID_SHARE_SESSION_EPOCH",
        then="ack M1 epoch=1 => nothing",
    ),
    Scenario(id="S04", on="server", when="fetch M1 epoch=5 => error SHARE_SESSION_NOT_FOUND"),
    Scenario(
        id="S05",
        on="server",
        when="""
            fetch M1 epoch=-1 => error SHARE_SESSION_NOT_FOUND
            ack M1 epoch=-1 => error SHARE_SESSION_NOT_FOUND
        """,
    ),
    Scenario(
        id="S06",
        on="server",
        given="""
            log 0-9
            fetch M1 epoch=0 => [0-9]c1
        """,
        when="fetch M1 epoch=0 ack=0-9:accept => error INVALID_REQUEST",
        then="ack M1 epoch=1 0-9:accept => NONE",
    ),
    Scenario(
        id="S07",
        on="server",
        given="fetch M1 epoch=0 => nothing",
        when="ack M1 epoch=0 => error INVALID_SHARE_SESSION_EPOCH",
        then="ack M1 epoch=1 => nothing",
    ),
    Scenario(
        id="S08",
        on="server",
        given="fetch M1 epoch=0 => nothing",
        when="""
            fetch M1 epoch=1 => nothing
            ack M1 epoch=2 => nothing
            fetch M1 epoch=3 => nothing
        """,
    ),
    Scenario(
        id="S09",
        on="server",
        given="""
            fetch M1 epoch=0 => nothing
            fetch M1 epoch=1 => nothing
        """,
        when="fetch M1 epoch=1 => error INVALID_SHARE_SESSION_EPOCH",
    ),
    Scenario(
        id="S10",
        on="server",
        config="max_size=1 max_sessions=1",
        given="""
            log 0-9
            fetch M1 epoch=0 => [0-9]c1
            fetch M1 epoch=1 => nothing
            fetch M1 epoch=2 => nothing
        """,
        when="fetch M1 epoch=0 => nothing",
        then="""
            fetch M1 epoch=3 => error INVALID_SHARE_SESSION_EPOCH
            ack M1 epoch=1 0-9:accept => NONE
        """,
    ),
    Scenario(
        id="S11",
        on="server",
        given="""
            log 0-9 10-19
            fetch M1 batch=10 => [0-9]c1 [10-19]c1
        """,
        when="close M1 via=fetch 0-9:accept => ack NONE bytes=none",
        then="fetch M2 => [10-19]c2",
    ),
    Scenario(
        id="S12",
        on="server",
        given="""
            log 0-9 10-19
            fetch M1 batch=10 => [0-9]c1 [10-19]c1
            ack M1 0-9:accept => NONE
        """,
        when="close M1 10-19:accept => NONE",
        then="""
            fetch M2 => nothing
            describe => start=20 lag=0
        """,
    ),
    Scenario(
        id="S13",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
        """,
        when="close M1 => nothing",
        then="fetch M2 => [0-9]c2",
    ),
    Scenario(
        id="S14",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            time 1000
        """,
        when="disconnect M1",
        then="fetch M2 => [0-9]c2",
    ),
    Scenario(
        id="S15",
        on="server",
        config="max_size=2 max_sessions=2",
        given="""
            fetch M1 => nothing
            fetch M2 => nothing
        """,
        when="""
            third& fetch M3 wait=500
            time 499
            await third => pending
            time 1
            await third => error SHARE_SESSION_LIMIT_REACHED
        """,
        then="""
            disconnect M1
            fetch M3 => nothing
        """,
    ),
    Scenario(
        id="S16",
        on="server",
        config="max_size=2 max_sessions=2",
        given="""
            log 0-9
            fetch M1 max=0 => nothing
            fetch M2 max=0 => nothing
            consumer C1
        """,
        when="poll C1 => nothing",
        then="""
            disconnect M1
            poll C1 => 0-9
        """,
    ),
    Scenario(
        id="S17",
        on="server",
        given="""
            topic t partitions=2
            fetch M1 => nothing listed=0,1
            log 0@0-9 1@0-9
        """,
        when="fetch M1 forget=0 => 1:[0-9]c1",
    ),
    Scenario(
        id="S18",
        on="server",
        given="""
            topic t partitions=2
            fetch M1 epoch=0 => nothing
            log 0@0-9 1@0-9
        """,
        when="fetch M1 epoch=1 forget=0,1 => nothing listed=none",
        then="""
            fetch M1 epoch=2 => nothing listed=none
            fetch M1 epoch=3 add=1 => 1:[0-9]c1
        """,
    ),
    Scenario(
        id="S19",
        on="server",
        given="""
            topic t partitions=2
            fetch M1 epoch=0 add=0 => nothing listed=0
        """,
        when="fetch M1 epoch=1 add=1 => nothing listed=1",
        then="fetch M1 epoch=2 => nothing listed=none",
    ),
    Scenario(
        id="S20",
        on="server",
        given="""
            fetch M1 epoch=0 add=1 => 1:error UNKNOWN_TOPIC_OR_PARTITION
            partitions t 2
        """,
        when="fetch M1 epoch=1 => nothing listed=1",
        then="fetch M1 epoch=2 => nothing listed=none",
    ),
    Scenario(
        id="S21",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            fetch M1 forget=0 => nothing
        """,
        when="close M1 => nothing",
        then="""
            fetch M2 => nothing
            time 29999
            fetch M2 => nothing
            time 1
            fetch M2 => [0-9]c2
        """,
    ),
    Scenario(
        id="S22",
        on="server",
        given="""
            topic t partitions=7
            log 0@0-19* 1@0-19* 2@0-19* 3@0-19* 4@0-19* 5@0-19* 6@0-19*
        """,
        when="""
            fetch M1 epoch=0 max=1 => 0:[0-0]c1
            fetch M1 epoch=1 max=1 => 1:[0-0]c1
            fetch M1 epoch=2 max=1 => 2:[0-0]c1
            fetch M1 epoch=3 max=1 => 3:[0-0]c1
            fetch M1 epoch=4 max=1 => 4:[0-0]c1
            fetch M1 epoch=5 max=1 => 5:[0-0]c1
            fetch M1 epoch=6 max=1 => 6:[0-0]c1
            fetch M1 epoch=7 max=1 => 0:[1-1]c1
            fetch M1 epoch=8 max=0 => nothing
            fetch M1 epoch=9 max=0 => nothing
            fetch M1 epoch=10 max=0 => nothing
            fetch M1 epoch=11 max=0 => nothing
            fetch M1 epoch=12 max=1 => 5:[1-1]c1
        """,
    ),
    Scenario(
        id="S22",
        on="core",
        given="topic t partitions=7",
        when="""
            session M1 epoch=0 add=0,1,2,3,4,5,6 => partitions=0,1,2,3,4,5,6
            session M1 epoch=1 => partitions=1,2,3,4,5,6,0
            session M1 skip=3
            session M1 epoch=3 => partitions=3,4,5,6,0,1,2
            session M1 skip=12
            session M1 epoch=12 => partitions=5,6,0,1,2,3,4
            session M1 skip=2147483647
            session M1 epoch=2147483647 => partitions=1,2,3,4,5,6,0
        """,
    ),
    Scenario(
        id="S23",
        on="core",
        given="""
            session M1 epoch=0 add=0 => partitions=0
            session M1 skip=2147483647
        """,
        when="session M1 epoch=2147483647 => partitions=0",
        then="""
            session M1 epoch=0x80000000 => error INVALID_SHARE_SESSION_EPOCH
            session M1 epoch=1 => partitions=0
        """,
    ),
    Scenario(
        id="S24",
        on="server",
        given="log 0-9",
        when="""
            fetch g1:M1 epoch=0 => [0-9]c1
            fetch g2:M1 epoch=0 => [0-9]c1
        """,
        then="""
            ack g1:M1 epoch=1 0-9:accept => NONE
            fetch g1:M1 epoch=2 => nothing
            ack g2:M1 epoch=1 0-9:release => NONE
            fetch g2:M1 epoch=2 => [0-9]c2
        """,
    ),
    Scenario(
        id="S25",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            ack M1 0-4:release => NONE
        """,
        when="disconnect M1",
        then="fetch M2 => [0-9]c2 or [0-4]c2 [5-9]c2",
        note="The attempt in flight counts too; Kafka may forget it here.",
    ),
)

LEFT = ()
