"""The P scenarios: stored state (SG-2, SG-14)."""

from tests.scenarios.language import Left, Scenario

SCENARIOS = (
    Scenario(
        id="P01",
        on="core",
        when="""
            write 0-4K1 => INVALID_REQUEST
            read => INVALID_REQUEST
        """,
    ),
    Scenario(
        id="P02",
        on="core",
        given="""
            init epoch=1 start=0 => NONE
            write leader=5 => NONE
        """,
        when="""
            write leader=4 => FENCED_LEADER_EPOCH
            read leader=4 => FENCED_LEADER_EPOCH
        """,
        then="write leader=5 => NONE",
    ),
    Scenario(
        id="P03",
        on="core",
        given="init epoch=1 start=0 => NONE",
        when="write epoch=0 => FENCED_STATE_EPOCH",
        then="write epoch=1 => NONE",
    ),
    Scenario(
        id="P04",
        on="core",
        given="""
            init epoch=1 start=0 => NONE
            write 0-4A1 leader=3 => NONE
            read leader=4 => 0-4A1
        """,
        when="write 0-4K1 leader=3 => FENCED_LEADER_EPOCH",
        then="""
            write 0-4K1 leader=4 => NONE
            read leader=4 => 0-4K1
        """,
    ),
    # P05: no batch has more than 256 records, as longer ones are inspected in a thread, which virtual time runs past.
    Scenario(
        id="P05",
        on="server",
        given="""
            log 0-201 202-403 404-605 606-807 808-1009
            fetch M1 max=1010 => [0-1009]c1
            stored => updates=1 number=0
            singly M1 0-498:accept
            stored => updates=500 number=499
        """,
        when="ack M1 499:accept => NONE",
        then="""
            stored => updates=1 number=500
            singly M1 500-998:accept
            stored => updates=500 number=999
            ack M1 999:accept => NONE
            stored => updates=1 number=1000
            crash
            describe => start=1000 lag=10
        """,
        note="A snapshot has no epoch of its own: updates are numbered on, and those it replaces are gone with it.",
        slow=True,
    ),
    Scenario(
        id="P06",
        on="server",
        given="""
            topic t
            stored => nothing
        """,
        when="summary => NONE start=-1 complete=-1",
        then="stored => nothing",
    ),
    Scenario(
        id="P07",
        on="core",
        given="""
            init epoch=1 start=0 => NONE
            write 0-4K1 10-14A2 complete=5 => NONE
        """,
        when="init epoch=2 start=40 => NONE",
        then="""
            read => nothing start=40 complete=0 epoch=2
            init epoch=1 start=0 => FENCED_STATE_EPOCH
        """,
    ),
    Scenario(
        id="P08",
        on="server",
        given="""
            topic t
            stored => nothing
        """,
        when="delete_state => NONE",
        then="""
            log 0-9
            fetch M1 => [0-9]c1
            stored => updates=1
            delete_state => NONE
            stored => nothing
        """,
    ),
    Scenario(
        id="P09",
        on="server",
        given="""
            topic t partitions=2
            log 0-4 1@0-4 foo.0@0-6
            fetch M1 => foo.0:[0-6]c1 0:[0-4]c1 1:[0-4]c1
            stored 0 => updates=1
            stored 1 => updates=1
            stored foo.0 => updates=1
        """,
        when="delete_topic t",
        then="""
            stored 0 => nothing
            stored 1 => nothing
            stored foo.0 => updates=1
        """,
    ),
    Scenario(id="P11", on="core", when="combine 100-110A1 + 105-108A1 => 100-110A1"),
    Scenario(id="P12", on="core", when="combine 100-110A1 + 111-115A1 => 100-115A1"),
    Scenario(id="P13", on="core", when="combine 100-110A3 + 100-115A1 => 100-110A3 111-115A1"),
    Scenario(id="P14", on="core", when="combine 100-115A1 + 105-110Q1 => 100-104A1 105-110Q1 111-115A1"),
    Scenario(
        id="P15",
        on="core",
        when="combine 111-120A1 + 111-113A2 114K1 115-119A2 => 111-113A2 114-114K1 115-119A2 120-120A1",
    ),
    Scenario(
        id="P16",
        on="core",
        when="combine 100-110A1 121-130A1 + 111-119K2 116-123K2 start=120 => 120-123K2 124-130A1",
    ),
    Scenario(id="P17", on="core", when="combine 90-99A1 100-110A1 + start=105 => 105-110A1"),
    Scenario(id="P18", on="core", when="combine 100-110A3 + 103-105A2 => 100-110A3"),
    Scenario(
        id="P19",
        on="core",
        when="""
            combine 100-110A2 + 100-110R2 => 100-110R2
            combine 100-110R2 + 100-110K2 => 100-110R2
        """,
    ),
    Scenario(id="P20", on="core", when="combine 100-110A1 121-130A1 + 111-120A1 => 100-130A1"),
    Scenario(
        id="P21",
        given="""
            log 0-4 5-9
            fetch M1 => [0-9]c1
            ack M1 0-4:accept => NONE
        """,
        when="crash",
        then="""
            describe => start=5 lag=5
            fetch M2 => [5-9]c2
        """,
        note="An acquire is durable here, so the attempt counts; Kafka delivers c1 again.",
    ),
    Scenario(
        id="P22",
        on="server",
        given="""
            log 0-9
            fetch M1 => [0-9]c1
            ack M1 0-8:accept => NONE
            describe => start=9 lag=1
        """,
        when="restart",
        then="""
            describe => start=9 lag=1
            fetch M2 => [9-9]c2
            log 10-14
            ack M2 9:accept => NONE
            fetch M2 => [10-14]c1
            describe => start=10 lag=5
        """,
    ),
    Scenario(
        id="P23",
        on="core",
        given="""
            init epoch=1 start=0 => NONE
            write 10-14K1 start=10 complete=5 => NONE
        """,
        when="write 5-9K1 start=5 => NONE",
        then="read => 10-14K1 start=10 complete=5",
    ),
)

LEFT = (
    Left(
        "P10",
        "No state is written again for its age alone: what keeps a slot's log short is in tests/slots/test_pruning.py.",
    ),
)
