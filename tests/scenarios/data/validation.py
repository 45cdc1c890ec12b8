"""Request validation (SG-7.1, SG-11): the V scenarios."""

from tests.scenarios.language import Left, Scenario

SCENARIOS = (
    Scenario(
        id="V02",
        on="server",
        when="""
            fetch M1 member_id= => error INVALID_REQUEST
            fetch M1 member_id=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa => error INVALID_REQUEST
            fetch M1 group_id=null => error INVALID_REQUEST
            ack M1 epoch=1 member_id= => error INVALID_REQUEST
            ack M1 epoch=1 group_id=null => error INVALID_REQUEST
        """,
    ),
    Scenario(
        id="V04",
        on="server",
        given="log 0-9",
        when="fetch M1 epoch=0 add=unknown.0 => unknown.0:error UNKNOWN_TOPIC_ID",
        then="""
            fetch M1 epoch=1 add=0 => 0:[0-9]c1 unknown.0:error UNKNOWN_TOPIC_ID
            ack M1 epoch=2 unknown.0@0-9:accept 0-9:accept => 0:NONE unknown.0:UNKNOWN_TOPIC_ID
        """,
        note="As the catalogue; Kafka 4.3.1 answers the fetch with a top-level error.",
    ),
    Scenario(
        id="V05",
        on="server",
        given="log 0-9",
        when="fetch M1 epoch=0 add=7 => 7:error UNKNOWN_TOPIC_OR_PARTITION",
        then="""
            ack M1 epoch=1 7@0-9:accept => 7:UNKNOWN_TOPIC_OR_PARTITION
            fetch M1 epoch=2 add=0 => 0:[0-9]c1 7:error UNKNOWN_TOPIC_OR_PARTITION
        """,
    ),
    Scenario(
        id="V08",
        on="server",
        given="log 0-9",
        when="""
            fetch M1 => [0-9]c1
            ack M1 5-3:accept => INVALID_REQUEST
        """,
        then="ack M1 0-9:accept => NONE",
    ),
    Scenario(
        id="V09",
        on="server",
        given="log 0-9",
        when="""
            fetch M1 => [0-9]c1
            ack M1 5-9:accept 0-4:accept => INVALID_REQUEST
        """,
        then="ack M1 0-9:accept => NONE",
    ),
    Scenario(
        id="V10",
        on="server",
        given="log 0-9",
        when="""
            fetch M1 => [0-9]c1
            ack M1 0-9:empty => INVALID_REQUEST
        """,
        then="ack M1 0-9:accept => NONE",
    ),
    Scenario(
        id="V11",
        on="core server",
        given="log 0-9",
        when="""
            fetch M1 => [0-9]c1
            ack M1 0-9:accept,accept,accept => INVALID_REQUEST
        """,
        then="ack M1 0-9:accept => NONE",
    ),
    Scenario(
        id="V12",
        on="server",
        given="log 0-9",
        when="""
            fetch M1 => [0-9]c1
            ack M1 0-9:raw5 => INVALID_REQUEST
            ack M1 0-9:renew version=1 => INVALID_REQUEST
            ack M1 0-9:raw-1 => INVALID_REQUEST
        """,
        then="ack M1 0-9:accept => NONE",
    ),
    Scenario(
        id="V12",
        on="core",
        given="log 0-9",
        when="""
            fetch M1 => [0-9]c1
            ack M1 0-9:raw5 => INVALID_REQUEST
            ack M1 0-9:raw-1 => INVALID_REQUEST
        """,
        then="ack M1 0-9:accept => NONE",
    ),
    Scenario(
        id="V13",
        on="server",
        given="log 0-9",
        when="""
            fetch M1 => [0-9]c1
            ack M1 0-9:renew renew=false => INVALID_REQUEST
        """,
        then="ack M1 0-9:renew renew=true => NONE",
    ),
    Scenario(
        id="V14",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
        """,
        when="fetch M1 renew=true wait=0 min=0 bytes=0 max=1 => error INVALID_REQUEST",
    ),
    Scenario(
        id="V15",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            log 10-19
            time 29999
        """,
        when="fetch M1 renew=true wait=0 min=0 bytes=0 max=0 ack=0-9:renew => ack NONE",
        then="""
            time 29999
            fetch M2 => [10-19]c1
            time 1
            fetch M2 => [0-9]c2
        """,
    ),
    Scenario(
        id="V16",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            log 10-19
        """,
        when="fetch M1 max=0 ack=0-9:accept => ack NONE bytes=none",
        then="""
            describe => start=10 lag=10
            fetch M1 => [10-19]c1
        """,
    ),
    Scenario(
        id="V17",
        on="server",
        given="""
            topic t partitions=2
            log 0@0-9 1@0-4
            fetch M1 epoch=0 add=1 => 1:[0-4]c1
        """,
        when="fetch M1 epoch=1 add=0 ack=1@0-4:accept twice=true => 0:[0-9]c1 1:ack NONE",
        then="describe 1 => start=5 lag=0",
        note="`twice`: the added partition and the acknowledged one stand in the request as two entries.",
    ),
    Scenario(
        id="V18",
        on="core server",
        given="""
            topic t partitions=3
            log 0@0-9 1@0-9 2@0-9
            fetch M1 => 0:[0-9]c1 1:[0-9]c1 2:[0-9]c1
        """,
        when="ack M1 0@0-9:accept 1@20-25:accept 2@0-9:accept => 0:NONE 1:INVALID_REQUEST 2:NONE",
        then="""
            describe 0 => start=10
            describe 1 => start=0
            describe 2 => start=10
        """,
    ),
)

LEFT = (
    Left("V01", "flowshare has no feature switch: share groups cannot be turned off, so there is nothing to refuse."),
    Left(
        "V03",
        "A broker by itself leads everything; that what it says of another leader reaches a client is seen at the "
        "socket: test_v03 in tests/server/security/test_share_rights.py.",
    ),
    Left("V06", "Rights are asked for at the socket: test_v06 in tests/server/security/test_share_rights.py."),
    Left("V07", "Rights are asked for at the socket: test_v07 in tests/server/security/test_share_rights.py."),
)
