"""Groups and their members (SG-12, SG-13): the G scenarios."""

from tests.scenarios.language import Left, Scenario

SCENARIOS = (
    Scenario(id="G01", when="join M1 topics= => error INVALID_REQUEST"),
    Scenario(
        id="G02",
        when="""
            beat M1 epoch=-2 topics=foo => error INVALID_REQUEST
            join M1 topics=foo rack= => error INVALID_REQUEST
            join "" topics=foo => error INVALID_REQUEST
        """,
    ),
    Scenario(id="G03", when="join M1 topics=foo => epoch=2 assigned=none interval=5000"),
    Scenario(
        id="G04",
        given="""
            join M1 topics=foo => epoch=2 assigned=none
            topic foo partitions=3
            time 5000
        """,
        when="beat M1 => epoch=3 assigned=foo.0,foo.1,foo.2",
        then="""
            time 5000
            beat M1 => epoch=3 assigned=same
        """,
        note="State is initialised within the heartbeat, so that the assignment is in its answer.",
    ),
    Scenario(
        id="G05",
        given="""
            topic foo partitions=3
            join M1 topics=foo => assigned=foo.0,foo.1,foo.2
            time 1000
            join M2 topics=foo
        """,
        when="""
            time 5000
            beat M1
            beat M2
        """,
        then="assigned => union=foo.0,foo.1,foo.2 sizes=1,2",
        note="The assignment is in the first answer.",
    ),
    Scenario(id="G06", when="beat M1 epoch=5 => error GROUP_ID_NOT_FOUND"),
    Scenario(
        id="G07",
        given="""
            topic foo
            join M1 topics=foo
        """,
        when="beat M2 epoch=5 => error UNKNOWN_MEMBER_ID",
    ),
    Scenario(
        id="G08",
        given="""
            topic foo
            topic bar
            join M1 topics=foo => epoch=2
            time 5000
            beat M1 topics=foo,bar => epoch=3
            time 5000
            beat M1 topics=foo => epoch=4
        """,
        when="""
            beat M1 epoch=3 => epoch=4
            beat M1 epoch=4 => epoch=4
            beat M1 epoch=2 => error FENCED_MEMBER_EPOCH
            beat M1 epoch=9 => error FENCED_MEMBER_EPOCH
        """,
    ),
    Scenario(
        id="G09",
        given="""
            topic foo partitions=2
            join M1 topics=foo => epoch=2 assigned=foo.0,foo.1
        """,
        when="join M1 topics=foo => epoch=2 assigned=foo.0,foo.1",
    ),
    Scenario(
        id="G10",
        given="""
            topic foo partitions=2
            join M1 topics=foo => epoch=2 assigned=foo.0,foo.1
            time 5000
        """,
        when="leave M1 => epoch=-1",
        then="""
            time 5000
            join M1 topics=foo => epoch=4 assigned=foo.0,foo.1
        """,
    ),
    Scenario(
        id="G11",
        given="""
            topic foo partitions=2
            join M1 topics=foo => epoch=2
            time 44999
            beat M1 => epoch=2
            time 45000
        """,
        when="beat M1 => error UNKNOWN_MEMBER_ID",
        then="join M1 topics=foo => epoch=4 assigned=foo.0,foo.1",
    ),
    Scenario(
        id="G12",
        config="max_size=2",
        given="""
            topic foo partitions=2
            join M1 topics=foo
            join M2 topics=foo
        """,
        when="join M3 topics=foo => error GROUP_MAX_SIZE_REACHED",
        then="""
            time 5000
            beat M1 => ok
            beat M2 => ok
            leave M2 => epoch=-1
            join M3 topics=foo => ok
        """,
    ),
    Scenario(
        id="G13",
        given="""
            topic foo partitions=2
            join M1 topics=foo => epoch=2 assigned=foo.0,foo.1
        """,
        when="restart",
        then="beat M1 => epoch=2 assigned=same",
    ),
    Scenario(
        id="G14",
        given="""
            topic foo partitions=2
            topic bar partitions=1
            join M1 topics=foo => epoch=2 assigned=foo.0,foo.1
            time 5000
        """,
        when="beat M1 topics=foo,bar => epoch=3 assigned=bar.0,foo.0,foo.1",
        then="beat M1 => epoch=3 assigned=same",
    ),
    Scenario(
        id="G16",
        on="server",
        when="describe_group nobody => error GROUP_ID_NOT_FOUND state=Dead",
        then="""
            topic foo
            join M1 topics=foo => epoch=2
            describe_group g => state=Stable epoch=2 assignor=simple members=M1
        """,
    ),
    Scenario(
        id="G17",
        on="server",
        given="""
            topic foo
            join g1:M1 topics=foo
            join g2:M1 topics=foo
            leave g2:M1
            time 5000
        """,
        when="groups types=share states=Empty => g2",
        then="""
            groups types=share => g1 g2
            groups types=consumer => nothing
            groups states=Stable => g1
        """,
    ),
    Scenario(id="G18", on="core", when="assign_walk partitions=24 from=1 to=101 => uncovered=0 spread=1 last=1-2"),
    Scenario(id="G19", on="core", when="assign_walk partitions=24 from=101 to=1 => uncovered=0 spread=1 last=24-24"),
    Scenario(
        id="G20",
        on="core",
        when="""
            assign members=A:T1,T2;B:T3;C:T2,T3 partitions=T1:0,1,2;T2:0,1,2;T3:0,1 => covered=8/8 outside=0
        """,
    ),
    Scenario(
        id="G20",
        on="server",
        given="""
            topic x partitions=3
            topic y partitions=3
            topic z partitions=2
        """,
        when="""
            join A topics=x,y
            join B topics=z
            join C topics=y,z
            time 5000
            beat A
            beat B
            beat C
        """,
        then="assigned => union=x.0,x.1,x.2,y.0,y.1,y.2,z.0,z.1",
    ),
    Scenario(
        id="G21",
        on="core",
        when="assign members=A:T1;B:T1 partitions=T1:0,2 => covered=2/2 unknown=0 sizes=1,1",
    ),
    Scenario(
        id="G22",
        given="""
            topic foo partitions=3
            join M1 topics=foo => epoch=2 assigned=foo.0,foo.1,foo.2
            time 500
        """,
        when="""
            join M2 topics=foo => epoch=3
            leave M2
            time 500
            beat M1 => epoch=3
        """,
        then="""
            time 499
            beat M1 => epoch=3 assigned=same
            time 1
            beat M1 => epoch=4 assigned=foo.0,foo.1,foo.2
        """,
        note="A joining member does not wait for the interval; everything else does.",
    ),
    Scenario(
        id="G23",
        on="server",
        given="""
            topic foo
            join M1 topics=foo
        """,
        when="delete_group g => NON_EMPTY_GROUP",
        then="""
            leave M1
            delete_group g => NONE
            describe_group g => error GROUP_ID_NOT_FOUND state=Dead
        """,
    ),
    Scenario(
        id="G24",
        on="server",
        given="""
            log 0-9
            join M1 topics=t
        """,
        when="alter 5 => error NON_EMPTY_GROUP",
        then="""
            leave M1
            alter 5 => NONE
            describe => start=5 lag=5
        """,
    ),
    Scenario(
        id="G25",
        on="server",
        given="""
            topic foo
            topic bar
            join M1 topics=foo => assigned=foo.0
            leave M1
        """,
        when="delete_offsets foo group=nobody => error GROUP_ID_NOT_FOUND",
        then="""
            delete_offsets bar => UNKNOWN_TOPIC_OR_PARTITION
            delete_offsets foo => NONE
        """,
    ),
    Scenario(
        id="G26",
        on="server",
        given="log 0-9",
        when="alter 4 group=fresh => NONE",
        then="""
            describe group=fresh => start=4 lag=6
            describe_group fresh => state=Empty members=none
        """,
    ),
)

LEFT = (Left("G15", "It needs a member of a consumer group: under G15 in tests/server/test_classic.py."),)
