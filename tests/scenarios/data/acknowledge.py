"""Acknowledging (SG-7): the K scenarios."""

from tests.scenarios.language import Scenario

TAKEN = """
    log 0-9
    fetch M1 => [0-9]c1
"""

SCENARIOS = (
    Scenario(
        id="K01",
        given=TAKEN,
        when="ack M1 0-9:accept => NONE",
        then="describe => start=10 lag=0",
        note="The start offset is right at once; Kafka 4.3.1 shows the one of the write before.",
    ),
    Scenario(
        id="K02",
        on="server",
        given=f"""
            {TAKEN}
            log 10-19
        """,
        when="fetch M1 ack=0-9:accept => ack NONE [10-19]c1",
    ),
    Scenario(id="K03", given=TAKEN, when="ack M1 0-9:release => NONE", then="fetch M1 => [0-9]c2"),
    Scenario(
        id="K04",
        on="server",
        given=f"""
            {TAKEN}
            log 10-19
        """,
        when="fetch M1 ack=0-9:release => ack NONE [0-9]c2 [10-19]c1",
    ),
    *Scenario(
        id="K05",
        on="server",
        given=f"""
            {TAKEN}
            log 10-19
        """,
        when="fetch M1 ack=0-9:reject => ack NONE [10-19]c1",
        then="fetch M1 => nothing",
    ).also(
        on="core server",
        when="ack M1 0-9:reject => NONE",
        then="""
            fetch M1 => [10-19]c1
            describe => start=10 lag=10
        """,
    ),
    Scenario(
        id="K06",
        given=TAKEN,
        when="""
            ack M1 0-9:accept,release,accept,release,accept,release,accept,release,accept,release => NONE
        """,
        then="fetch M1 => [1-1]c2 [3-3]c2 [5-5]c2 [7-7]c2 [9-9]c2",
    ),
    *Scenario(
        id="K07",
        given="""
            log 10-18
            fetch M1 => [10-18]c1
        """,
        when="ack M1 10-18:release*5,gap*3,accept => NONE",
        then="""
            describe => start=10 lag=5
            fetch M1 => [10-14]c2
        """,
    ).also(
        on="core",
        then="describe => complete=4 lag=5",
    ),
    Scenario(
        id="K08",
        given="""
            log 5-9 10-18
            fetch M1 batch=1 => [5-9]c1 [10-18]c1
        """,
        when="ack M1 6-18:accept => NONE",
        then="""
            describe => start=5 lag=1
            ack M1 5:release => NONE
            fetch M1 => [5-5]c2
        """,
    ),
    Scenario(
        id="K09",
        given="log 0-9",
        when="ack M1 0-4:accept => INVALID_RECORD_STATE or UNKNOWN_TOPIC_OR_PARTITION",
    ),
    Scenario(
        id="K10",
        given="""
            log 5-9
            fetch M1 => [5-9]c1
        """,
        when="ack M1 20-25:accept => INVALID_REQUEST",
        then="ack M1 5-9:accept => NONE",
    ),
    Scenario(
        id="K11",
        given="""
            log 0-4
            fetch M1 => [0-4]c1
            ack M1 0-10:accept => INVALID_REQUEST
            log 5-10
            fetch M1 => [5-10]c1
        """,
        when="ack M1 0-10:accept => NONE",
        then="describe => start=11 lag=0",
    ),
    Scenario(
        id="K12",
        given=TAKEN,
        when="ack M2 0-9:accept => INVALID_RECORD_STATE",
        then="""
            describe => start=0
            ack M1 0-9:accept => NONE
            describe => start=10
        """,
    ),
    Scenario(
        id="K13",
        given=f"""
            {TAKEN}
            ack M1 0-9:accept => NONE
        """,
        when="ack M1 0-9:accept => NONE",
        then="""
            ack M1 0-9:release => NONE
            describe => start=10 lag=0
        """,
    ),
    Scenario(
        id="K13",
        given=f"""
            {TAKEN}
            ack M1 5-9:accept => NONE
        """,
        when="ack M1 5-9:accept => INVALID_RECORD_STATE",
        then="ack M1 0-9:accept => INVALID_RECORD_STATE",
    ),
    Scenario(
        id="K14",
        given="""
            log 5-9 10-14
            fetch M1 => [5-14]c1
        """,
        when="ack M1 5-9:accept 10-14:accept 20-25:accept => INVALID_REQUEST",
        then="""
            describe => start=5 lag=10
            ack M1 5-14:accept => NONE
            describe => start=15 lag=0
        """,
    ),
    *Scenario(
        id="K15",
        on="server",
        given=TAKEN,
        when="ack M1 0-9:accept 0-9:accept => INVALID_REQUEST",
        then="""
            describe => start=0 lag=10
            ack M1 0-9:accept => NONE
        """,
    ).also(
        on="core server",
        when="ack M1 0-5:accept 5-9:accept => INVALID_RECORD_STATE",
    ),
    Scenario(
        id="K16",
        given="""
            log 5-14 15-19 20-24 25-34
            fetch M1 batch=1 => [5-14]c1 [15-19]c1 [20-24]c1 [25-34]c1
        """,
        when="ack M1 12-30:release => NONE",
        then="""
            fetch M1 max=3 batch=1 mode=record_limit => [12-14]c2
            fetch M1 max=5 batch=1 => [15-19]c2
            fetch M1 max=5 batch=1 => [20-24]c2
            fetch M1 batch=1 => [25-30]c2
        """,
    ),
    Scenario(
        id="K17",
        given="""
            log 0-19 20-49 50-179
            fetch M1 => [0-179]c1
        """,
        when="""
            ack M1 0-19:accept => NONE
            describe => start=20
            ack M1 20-49:accept => NONE
            describe => start=50
            ack M1 50-179:accept => NONE
            describe => start=180 lag=0
        """,
    ),
    Scenario(
        id="K18",
        given="""
            log 0-9 10-14
            fetch M1 => [0-14]c1
        """,
        when="ack M1 10-14:accept => NONE",
        then="""
            describe => start=0 lag=10
            ack M1 0-9:accept => NONE
            describe => start=15 lag=0
        """,
    ),
    *Scenario(id="K19", given=TAKEN, when="ack M1 0-9:accept*9,gap => NONE", then="describe => start=10 lag=0").also(
        when="ack M1 0-8:accept 9:gap => NONE",
    ),
    Scenario(
        id="K20",
        given=f"""
            {TAKEN}
            persister fail error=COORDINATOR_NOT_AVAILABLE
        """,
        when="ack M1 0-9:accept => COORDINATOR_NOT_AVAILABLE or KAFKA_STORAGE_ERROR",
        then="""
            describe => start=0 lag=10
            persister ok
            fetch M2 => nothing
            ack M1 0-9:accept => NONE
            describe => start=10 lag=0
        """,
        note="Embedded's only persister error is that the disk refused the write.",
    ),
    Scenario(
        id="K21",
        given=f"""
            {TAKEN}
            persister hold
            a& ack M1 0-9:accept
            time 30000
            await a => pending
        """,
        when="settle fail",
        then="""
            await a => UNKNOWN_SERVER_ERROR or KAFKA_STORAGE_ERROR
            persister ok
            fetch M2 => [0-9]c2
        """,
    ),
    Scenario(
        id="K22",
        given=f"""
            {TAKEN}
            persister hold
            a& ack M1 0-9:accept
        """,
        when="ack M1 0-9:accept => INVALID_RECORD_STATE",
        then="""
            settle ok
            await a => NONE
            describe => start=10 lag=0
        """,
    ),
    Scenario(
        id="K23",
        given=f"""
            {TAKEN}
            persister hold
            a& ack M1 0-9:release
        """,
        when="fetch M2 => nothing",
        then="""
            settle ok
            await a => NONE
            persister ok
            fetch M2 => [0-9]c2
        """,
    ),
    Scenario(
        id="K24",
        on="server",
        given="""
            log 0-9 10-19
            fetch M1 batch=10 => [0-9]c1 [10-19]c1
        """,
        when="""
            alter 15 => NONE
            ack M1 0-9:accept => NOT_LEADER_OR_FOLLOWER or UNKNOWN_TOPIC_OR_PARTITION
        """,
        then="""
            describe => start=15 lag=5
            fetch M1 => [15-19]c1
        """,
        note="Embedded's one leader sees the reset itself and unloads the share-partition, so the late acknowledgement "
        "meets one that is not loaded; a broker learns of it from the persister: NOT_LEADER_OR_FOLLOWER.",
    ),
    Scenario(
        id="K25",
        on="server",
        given=f"""
            {TAKEN}
            delete_topic t
        """,
        when="ack M1 0-9:accept => UNKNOWN_TOPIC_ID",
    ),
    Scenario(
        id="K26",
        given="""
            log 0-9
            fetch g1:M1 => [0-9]c1
            fetch g2:M1 => [0-9]c1
        """,
        when="ack g1:M1 0-9:reject => NONE",
        then="""
            describe group=g1 => start=10
            describe group=g2 => start=0
            ack g2:M1 0-9:release => NONE
            fetch g2:M1 => [0-9]c2
        """,
    ),
    Scenario(
        id="K27",
        on="server",
        given="""
            log 0-9
            consumer C1 mode=explicit
            poll C1 => 0-9
        """,
        when="poll C1 => raises IllegalState",
        then="""
            acknowledge C1 0-9:accept => ok
            poll C1 => nothing
        """,
    ),
    Scenario(
        id="K28",
        on="server",
        given="""
            log 0-9
            consumer C1 mode=implicit
        """,
        when="""
            poll C1 => 0-9
            describe => start=0 lag=10
            poll C1 => nothing
        """,
        then="describe => start=10 lag=0",
    ),
    Scenario(
        id="K29",
        on="server",
        given="""
            topic t partitions=2
            log 0@0-1 1@0-0
            consumer C1 mode=explicit
            poll C1 => 0:0-1 1:0-0
        """,
        when="""
            acknowledge C1 0@0-1:accept 1@0-0:accept => ok
            commit C1 how=async => ok
            poll C1 => nothing
            poll C1 => nothing
        """,
        then="callbacks C1 => 0:0-1:none 1:0-0:none",
    ),
    Scenario(
        id="K30",
        given=f"""
            {TAKEN}
            logstart 5
            fetch M2 => nothing
            describe => start=5
        """,
        when="ack M1 0-9:accept => NONE",
        then="describe => start=10 lag=0",
    ),
)

LEFT = ()
