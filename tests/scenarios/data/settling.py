"""Records settled with outputs in one step (SG-19): the X scenarios."""

from tests.scenarios.language import Scenario

OUT = "topic out fetched=no"
BY_KEY = "config order=key"
ALL_REFUSED = "INVALID_REQUEST outputs=0:UNKNOWN_TOPIC_OR_PARTITION,2:UNKNOWN_TOPIC_OR_PARTITION,3:MESSAGE_TOO_LARGE"
HELD = """
    topic out fetched=no
    config lock=15000
    log 0-1
    fetch M1 => [0-1]c1
    persister hold
    a& share_settle M1 0:accept +out.0:2
"""
"""The settle of a record is being written; its member holds another one."""

SCENARIOS = (
    # --- outcomes ---
    # Records are accepted and their outputs written in one step.
    Scenario(
        id="X01",
        given=f"""
            {OUT}
            log 0-2
            fetch M1 => [0-2]c1
        """,
        when="share_settle M1 0-1:accept +out.0:3 => NONE refused=none",
        then="""
            outputs out => records=3
            describe => start=2 lag=1
            fetch M2 => nothing
            ack M1 2:accept => NONE
            describe => start=3 lag=0
        """,
    ),
    # A record is rejected, and its member's own letter of it is written.
    Scenario(
        id="X02",
        given=f"""
            {OUT}
            log 0-1
            fetch M1 => [0-1]c1
        """,
        when="share_settle M1 0:reject +out.0:1 => NONE",
        then="""
            outputs out => records=1
            describe => start=1 lag=1
            close M1
            fetch M2 => [1-1]c2
        """,
    ),
    # What the group has dead letters for gets one, whatever its member wrote of it.
    Scenario(
        id="X03",
        on="core",
        given=f"""
            {OUT}
            config dead_letters=dead
            log 0-1
            fetch M1 => [0-1]c1
        """,
        when="share_settle M1 0:reject 1:accept +out.0:1 => NONE",
        then="""
            outputs out => records=1
            archiving => 0-0c1:reject
            describe => start=0
            archived 0
            describe => start=2 lag=0
        """,
    ),
    Scenario(
        id="X03",
        on="server",
        given=f"""
            topic dead fetched=no
            {OUT}
            config dead_letters=dead
            log 0-1
            fetch M1 => [0-1]c1
        """,
        when="share_settle M1 0:reject 1:accept +out.0:1 => NONE",
        then="""
            letters dead => records=1 offsets=0-0
            outputs out => records=1
            describe => start=2 lag=0
        """,
    ),
    # One call has outputs for several topics and partitions.
    Scenario(
        id="X04",
        given="""
            topic out fetched=no partitions=2
            topic other fetched=no
            log 0-1
            fetch M1 => [0-1]c1
        """,
        when="share_settle M1 0:accept 1:reject +out.0:1 +out.1:2 +other.0:3 +out.1:1 => NONE",
        then="""
            outputs out => records=4
            outputs out partition=1 => records=3
            outputs other => records=3
            describe => start=2 lag=0
        """,
    ),
    # Without outputs it is an acknowledgement that holds whole.
    Scenario(
        id="X05",
        given="""
            log 0-1
            fetch M1 => [0-1]c1
        """,
        when="share_settle M1 0-1:accept,reject => NONE",
        then="describe => start=2 lag=0",
    ),
    # Outputs for the topic that the group reads are its next records.
    Scenario(
        id="X06",
        given="""
            log 0
            fetch M1 => [0-0]c1
        """,
        when="share_settle M1 0:accept +t.0:2 => NONE",
        then="""
            fetch M1 => [1-2]c1
            describe => start=1 lag=2
        """,
    ),
    # --- what is refused for its records ---
    # Only accept and reject.
    Scenario(
        id="X07",
        given=f"""
            {OUT}
            log 0-1
            fetch M1 => [0-1]c1
        """,
        when="""
            share_settle M1 0:release +out.0:1 => INVALID_REQUEST
            share_settle M1 0:gap +out.0:1 => INVALID_REQUEST
            share_settle M1 0:renew +out.0:1 => INVALID_REQUEST
            share_settle M1 0-1:accept,release +out.0:1 => INVALID_REQUEST
        """,
        then="""
            outputs out => records=0
            share_settle M1 0-1:accept +out.0:1 => NONE
            outputs out => records=1
        """,
    ),
    # What nobody acquired is not settled.
    Scenario(
        id="X08",
        given=f"""
            {OUT}
            log 0-4
            fetch M1 max=2 mode=record_limit => [0-1]c1
        """,
        when="share_settle M1 2:accept +out.0:1 => INVALID_RECORD_STATE refused=2-2",
        then="""
            outputs out => records=0
            fetch M2 => [2-4]c1
        """,
    ),
    # What another member holds stays its own.
    Scenario(
        id="X09",
        given=f"""
            {OUT}
            log 0
            fetch M1 => [0-0]c1
        """,
        when="share_settle M2 0:accept +out.0:1 => INVALID_RECORD_STATE refused=0-0",
        then="""
            outputs out => records=0
            share_settle M1 0:accept +out.0:1 => NONE
            outputs out => records=1
        """,
    ),
    # One record that is not the member's, and nothing of the call is written; the answer names it alone.
    Scenario(
        id="X10",
        given=f"""
            {OUT}
            log 0-3
            fetch M1 => [0-3]c1
            ack M1 2:release => NONE
        """,
        when="share_settle M1 0:accept 1-3:accept +out.0:4 => INVALID_RECORD_STATE refused=2-2",
        then="""
            outputs out => records=0
            describe => start=0
            share_settle M1 0-1:accept 3:accept +out.0:3 => NONE
            outputs out => records=3
            fetch M2 => [2-2]c2
        """,
    ),
    # All that is not the member's is named.
    Scenario(
        id="X11",
        given=f"""
            {OUT}
            log 0-5
            fetch M1 => [0-5]c1
            ack M1 1:release 4-5:release => NONE
        """,
        when="share_settle M1 0-5:accept +out.0:1 => INVALID_RECORD_STATE refused=1-1,4-5",
        then="outputs out => records=0",
    ),
    # What is finished already is refused, even below the start offset: its outputs were written then.
    Scenario(
        id="X12",
        given=f"""
            {OUT}
            log 0-2
            fetch M1 => [0-2]c1
            share_settle M1 0:accept +out.0:1 => NONE
            share_settle M1 2:accept +out.0:1 => NONE
            describe => start=1
        """,
        when="""
            share_settle M1 0:accept +out.0:1 => INVALID_RECORD_STATE refused=0-0
            share_settle M1 2:accept +out.0:1 => INVALID_RECORD_STATE refused=2-2
            share_settle M1 0-1:accept +out.0:1 => INVALID_RECORD_STATE refused=0-0
        """,
        then="""
            outputs out => records=2
            share_settle M1 1:accept +out.0:1 => NONE
            outputs out => records=3
        """,
    ),
    # What a plain acknowledgement finished is refused, too.
    Scenario(
        id="X13",
        given=f"""
            {OUT}
            log 0-1
            fetch M1 => [0-1]c1
            ack M1 0:accept => NONE
        """,
        when="share_settle M1 0:accept +out.0:1 => INVALID_RECORD_STATE refused=0-0",
        then="outputs out => records=0",
    ),
    # An attempt that is over is not settled, though its member has the record again.
    Scenario(
        id="X14",
        given=f"""
            {OUT}
            log 0
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
        """,
        when="share_settle M1 0:accept attempt=1 +out.0:1 => INVALID_RECORD_STATE refused=0-0",
        then="""
            outputs out => records=0
            share_settle M1 0:accept attempt=2 +out.0:1 => NONE
            outputs out => records=1
        """,
    ),
    # What a lapsed lock took away is settled by whom it was given to.
    Scenario(
        id="X15",
        given=f"""
            {OUT}
            config lock=15000
            log 0
            fetch M1 => [0-0]c1
            time 15000
        """,
        when="share_settle M1 0:accept +out.0:1 => INVALID_RECORD_STATE refused=0-0",
        then="""
            fetch M2 => [0-0]c2
            share_settle M1 0:accept +out.0:1 => INVALID_RECORD_STATE refused=0-0
            outputs out => records=0
            share_settle M2 0:accept attempt=2 +out.0:2 => NONE
            outputs out => records=2
        """,
    ),
    # Nor is it settled when that one has.
    Scenario(
        id="X16",
        given=f"""
            {OUT}
            config lock=15000
            log 0-1
            fetch M1 => [0-1]c1
            time 15000
            fetch M2 => [0-1]c2
            share_settle M2 0-1:accept attempt=2 +out.0:2 => NONE
        """,
        when="share_settle M1 0-1:accept +out.0:2 => INVALID_RECORD_STATE refused=0-1",
        then="""
            outputs out => records=2
            describe => start=2 lag=0
        """,
    ),
    # A session that was closed gave its records back.
    Scenario(
        id="X17",
        given=f"""
            {OUT}
            log 0
            fetch M1 => [0-0]c1
            close M1
        """,
        when="share_settle M1 0:accept +out.0:1 => INVALID_RECORD_STATE refused=0-0",
        then="""
            outputs out => records=0
            fetch M2 => [0-0]c2
        """,
    ),
    # What the log has lost is settled no more.
    Scenario(
        id="X18",
        given=f"""
            {OUT}
            log 0-3
            fetch M1 => [0-3]c1
            logstart 2
            fetch M2 => nothing
        """,
        when="share_settle M1 0-3:accept +out.0:1 => INVALID_RECORD_STATE refused=0-1",
        then="""
            outputs out => records=0
            share_settle M1 2-3:accept +out.0:1 => NONE
            outputs out => records=1
        """,
    ),
    # In a group that is paused, what is held is settled.
    Scenario(
        id="X19",
        given=f"""
            {OUT}
            log 0-1 2-3
            fetch M1 max=2 => [0-1]c1
            config paused=true
        """,
        when="share_settle M1 0-1:accept +out.0:2 => NONE",
        then="""
            outputs out => records=2
            fetch M1 => nothing
        """,
    ),
    # --- what is refused for its outputs ---
    # An output for a topic that is not there is named, and nothing is written.
    Scenario(
        id="X20",
        on="server",
        given=f"""
            {OUT}
            log 0
            fetch M1 => [0-0]c1
        """,
        when="share_settle M1 0:accept +out.0:1 +nowhere.0:1 => INVALID_REQUEST outputs=1:UNKNOWN_TOPIC_OR_PARTITION",
        then="""
            outputs out => records=0
            describe => start=0 lag=1
            share_settle M1 0:accept +out.0:1 => NONE
            outputs out => records=1
        """,
    ),
    # So is one for a topic of that name that is another one.
    Scenario(
        id="X21",
        on="server",
        given=f"""
            {OUT}
            log 0
            fetch M1 => [0-0]c1
        """,
        when="share_settle M1 0:accept +out.0:1~ => INVALID_REQUEST outputs=0:UNKNOWN_TOPIC_OR_PARTITION",
        then="""
            outputs out => records=0
            share_settle M1 0:accept +out.0:1 => NONE
        """,
    ),
    # And one for a partition that the topic has not.
    Scenario(
        id="X22",
        on="server",
        given=f"""
            {OUT}
            log 0
            fetch M1 => [0-0]c1
        """,
        when="share_settle M1 0:accept +out.3:1 => INVALID_REQUEST outputs=0:UNKNOWN_TOPIC_OR_PARTITION",
        then="""
            outputs out => records=0
            share_settle M1 0:accept +out.0:1 => NONE
        """,
    ),
    # And one that is larger than its topic takes; those beside it are not written either.
    Scenario(
        id="X23",
        on="server",
        given="""
            topic out fetched=no
            topic small fetched=no max_bytes=2000
            log 0
            fetch M1 => [0-0]c1
        """,
        when="""
            share_settle M1 0:accept size=1500 +out.0:2 +small.0:2 => INVALID_REQUEST outputs=1:MESSAGE_TOO_LARGE
        """,
        then="""
            outputs out => records=0
            outputs small => records=0
            share_settle M1 0:accept size=1500 +out.0:2 +small.0:1 => NONE
            outputs out => records=2
            outputs small => records=1
        """,
    ),
    # Each output that is refused has its own reason.
    Scenario(
        id="X24",
        on="server",
        given="""
            topic out fetched=no
            topic small fetched=no max_bytes=2000
            log 0
            fetch M1 => [0-0]c1
        """,
        when=f"""
            share_settle M1 0:accept size=1500 +nowhere.0:1 +out.0:1 +out.9:1 +small.0:2 => {ALL_REFUSED}
        """,
        then="""
            outputs out => records=0
            share_settle M1 0:accept +out.0:1 => NONE
        """,
    ),
    # Outputs have no producer id, and are in no transaction.
    Scenario(
        id="X25",
        on="server",
        given=f"""
            {OUT}
            log 0
            fetch M1 => [0-0]c1
        """,
        when="""
            share_settle M1 0:accept +out.0:1 +out.0:1p => INVALID_REQUEST outputs=1:CORRUPT_MESSAGE
            share_settle M1 0:accept +out.0:1t => INVALID_REQUEST outputs=0:CORRUPT_MESSAGE
            share_settle M1 0:accept +out.0:2c => INVALID_REQUEST outputs=0:CORRUPT_MESSAGE
        """,
        then="""
            outputs out => records=0
            share_settle M1 0:accept +out.0:1 => NONE
            outputs out => records=1
        """,
    ),
    # Ten thousand records a call, and five thousand outputs.
    Scenario(
        id="X26",
        on="server",
        slow=True,
        given=f"""
            {OUT}
            log 0-10000
            fetch M1 => [0-10000]c1
        """,
        when="""
            share_settle M1 0:accept +out.0:1*5001 => INVALID_REQUEST
            share_settle M1 0-10000:accept +out.0:1 => INVALID_REQUEST
        """,
        then="""
            outputs out => records=0
            describe => start=0
            share_settle M1 0-9999:accept +out.0:1*5000 => NONE
            outputs out => records=5000
            describe => start=10000 lag=1
        """,
    ),
    # A call for a share-partition that is not there settles nothing.
    Scenario(
        id="X27",
        on="server",
        given=f"""
            {OUT}
            log 0
            fetch M1 => [0-0]c1
        """,
        when="""
            share_settle M1 unknown.0@0:accept +out.0:1 => UNKNOWN_TOPIC_ID
            share_settle M1 7@0:accept +out.0:1 => UNKNOWN_TOPIC_OR_PARTITION
        """,
        then="""
            outputs out => records=0
            share_settle M1 0:accept +out.0:1 => NONE
        """,
    ),
    # --- while it is being written ---
    # Nobody sees an output before its record is accepted.
    Scenario(
        id="X28",
        given=HELD,
        when="""
            await a => pending
            outputs out => records=0
        """,
        then="""
            settle ok
            await a => NONE
            outputs out => records=2
        """,
    ),
    Scenario(
        id="X28",
        on="server",
        given=HELD,
        when="outputs out isolation=read_uncommitted => records=0",
        then="""
            settle ok
            await a => NONE
            outputs out isolation=read_uncommitted => records=2
            outputs out => records=2
        """,
    ),
    # A record whose settle is being written is nobody else's.
    Scenario(id="X29", given=HELD, when="fetch M2 => nothing", then="settle ok\nawait a => NONE\nfetch M2 => nothing"),
    # It is settled once.
    Scenario(
        id="X30",
        given=HELD,
        when="share_settle M1 0:accept +out.0:3 => INVALID_RECORD_STATE refused=0-0",
        then="""
            settle ok
            await a => NONE
            outputs out => records=2
            describe => start=1 lag=1
        """,
    ),
    # And not in one call with another one either.
    Scenario(
        id="X31",
        given=HELD,
        when="share_settle M1 0-1:accept +out.0:3 => INVALID_RECORD_STATE refused=0-0",
        then="""
            settle ok
            await a => NONE
            outputs out => records=2
            share_settle M1 1:accept +out.0:1 => NONE
            outputs out => records=3
        """,
    ),
    # It is not given back, not renewed and not accepted meanwhile.
    Scenario(
        id="X32",
        given=HELD,
        when="""
            ack M1 0:release => INVALID_RECORD_STATE
            ack M1 0:renew => INVALID_RECORD_STATE
            ack M1 0:accept => INVALID_RECORD_STATE
            ack M1 0:reject => INVALID_RECORD_STATE
        """,
        then="""
            settle ok
            await a => NONE
            outputs out => records=2
            describe => start=1 lag=1
        """,
    ),
    # Its lock does not lapse while it is being written.
    Scenario(
        id="X33",
        given=HELD,
        when="time 15000",
        then="""
            await a => pending
            settle ok
            await a => NONE
            outputs out => records=2
            time 15000
            fetch M2 => [1-1]c2
            describe => start=1 lag=1
        """,
        note="A server whose write took seconds gives the locks that lapsed meanwhile a moment more.",
    ),
    # If it cannot be written, and its lock has lapsed, it is to be had.
    Scenario(
        id="X34",
        given=HELD,
        when="""
            time 15000
            settle fail
        """,
        then="""
            await a => KAFKA_STORAGE_ERROR or UNKNOWN_SERVER_ERROR
            persister ok
            outputs out => records=0
            fetch M2 max=1 mode=record_limit => [0-0]c2
            share_settle M1 0:accept +out.0:2 => INVALID_RECORD_STATE refused=0-0
            share_settle M2 0:accept attempt=2 +out.0:1 => NONE
            outputs out => records=1
        """,
    ),
    # If it cannot be written, and its lock has not lapsed, it is its member's again.
    Scenario(
        id="X35",
        given=HELD,
        when="settle fail",
        then="""
            await a => KAFKA_STORAGE_ERROR or UNKNOWN_SERVER_ERROR
            persister ok
            outputs out => records=0
            fetch M2 => nothing
            share_settle M1 0:accept +out.0:2 => NONE
            outputs out => records=2
            describe => start=1 lag=1
        """,
    ),
    # Or it may give it back.
    Scenario(
        id="X36",
        given=HELD,
        when="settle fail",
        then="""
            await a => KAFKA_STORAGE_ERROR or UNKNOWN_SERVER_ERROR
            persister ok
            ack M1 0:release => NONE
            fetch M2 => [0-0]c2
            outputs out => records=0
        """,
    ),
    # A last delivery that was not written and whose lock has lapsed is over.
    Scenario(
        id="X37",
        given=f"""
            {OUT}
            config lock=15000 delivery=2
            log 0
            fetch M1 => [0-0]c1
            ack M1 0:release => NONE
            fetch M1 => [0-0]c2
            persister hold
            a& share_settle M1 0:accept attempt=2 +out.0:1
            time 15000
        """,
        when="settle fail",
        then="""
            await a => KAFKA_STORAGE_ERROR or UNKNOWN_SERVER_ERROR
            persister ok
            outputs out => records=0
            fetch M2 => nothing
            describe => start=1 lag=0
        """,
    ),
    # Two settles of different records are written beside each other.
    Scenario(
        id="X38",
        given=HELD,
        when="b& share_settle M1 1:reject +out.0:1",
        then="""
            await a => pending
            await b => pending
            settle ok
            await a => NONE
            await b => NONE
            outputs out => records=3
            describe => start=2 lag=0
        """,
    ),
    # If both cannot be written, both are their member's again.
    Scenario(
        id="X39",
        on="core",
        given=HELD,
        when="b& share_settle M1 1:reject +out.0:1",
        then="""
            settle fail
            await a => KAFKA_STORAGE_ERROR or UNKNOWN_SERVER_ERROR
            await b => KAFKA_STORAGE_ERROR or UNKNOWN_SERVER_ERROR
            persister ok
            outputs out => records=0
            share_settle M1 0-1:accept +out.0:2 => NONE
            outputs out => records=2
        """,
    ),
    Scenario(
        id="X39",
        on="server",
        given=HELD,
        when="b& share_settle M1 1:reject +out.0:1",
        then="""
            settle fail
            await a => KAFKA_STORAGE_ERROR
            await b => NONE
            outputs out => records=1
            share_settle M1 0:accept +out.0:2 => NONE
            outputs out => records=3
            describe => start=2 lag=0
        """,
        note="The second one waits for the first one's write, and has one of its own then, which does not fail.",
    ),
    # A session that is closed gives back the rest; what is being written is written.
    Scenario(
        id="X40",
        given=f"{HELD}",
        when="c& close M1",
        then="""
            settle ok
            await a => NONE
            persister ok
            outputs out => records=2
            fetch M2 => [1-1]c2
            describe => start=1 lag=1
        """,
    ),
    # So does a connection that ends.
    Scenario(
        id="X41",
        on="server",
        given=HELD,
        when="d& disconnect M1",
        then="""
            settle ok
            persister ok
            outputs out => records=2
            fetch M2 => [1-1]c2
            describe => start=1 lag=1
        """,
    ),
    # What could not be written after its session was closed is to be had, with its lock's end at the latest.
    Scenario(
        id="X42",
        given=HELD,
        when="c& close M1",
        then="""
            settle fail
            await a => KAFKA_STORAGE_ERROR or UNKNOWN_SERVER_ERROR
            persister ok
            time 15000
            outputs out => records=0
            fetch M2 => [0-1]c2
        """,
    ),
    # A fetch that waits at the limit of locks is woken when records are settled.
    Scenario(
        id="X43",
        on="server",
        given=f"""
            {OUT}
            config locks=2
            log 0-1 2-3
            fetch M1 => [0-1]c1
            f& fetch M2 wait=10000
            await f => pending
        """,
        when="share_settle M1 0-1:accept +out.0:1 => NONE",
        then="await f => [2-3]c1 waited=0",
    ),
    # Retention passes a record whose settle is being written: it is written all the same.
    Scenario(
        id="X44",
        given=f"""
            {HELD}
            logstart 1
        """,
        when="settle ok",
        then="""
            await a => NONE
            persister ok
            fetch M2 => nothing
            outputs out => records=2
            describe => start=1 lag=1
        """,
    ),
    # --- members and leaders that end ---
    # A leader that ended before it wrote has its member hold the record still, which settles it again.
    Scenario(
        id="X45",
        on="server",
        config="return_grace=30000",
        given=f"""
            join M1 topics=t
            {HELD}
            crash writes=lost
        """,
        when="resume M1 0-1 => held=0-1",
        then="""
            outputs out => records=0
            share_settle M1 0-1:accept +out.0:2 => NONE
            outputs out => records=2
            describe => start=2 lag=0
        """,
    ),
    # Of one that had written, though it could not tell, the member does not hold the record: its outputs are there.
    Scenario(
        id="X46",
        on="server",
        config="return_grace=30000",
        given=f"""
            join M1 topics=t
            {HELD}
            crash
        """,
        when="resume M1 0-1 => held=1-1",
        then="""
            outputs out => records=2
            share_settle M1 0:accept +out.0:2 => INVALID_RECORD_STATE refused=0-0
            outputs out => records=2
            share_settle M1 1:accept +out.0:1 => NONE
            outputs out => records=3
            describe => start=2 lag=0
        """,
    ),
    # A member that nobody waits for holds nothing any more: others have the records.
    Scenario(
        id="X47",
        on="server",
        given=f"""
            {HELD}
            crash writes=lost
        """,
        when="fetch M2 => [0-1]c2",
        then="""
            resume M1 0-1 => held=none
            share_settle M1 0:accept +out.0:2 => INVALID_RECORD_STATE refused=0-0
            outputs out => records=0
            share_settle M2 0:accept attempt=2 +out.0:2 => NONE
            outputs out => records=2
        """,
    ),
    # A leader that ends in order takes nothing of what was settled with it.
    Scenario(
        id="X48",
        on="server",
        given=f"""
            {OUT}
            log 0-1
            fetch M1 => [0-1]c1
            share_settle M1 0:accept +out.0:2 => NONE
        """,
        when="restart",
        then="""
            fetch M2 => [1-1]c2
            share_settle M1 0:accept +out.0:2 => INVALID_RECORD_STATE refused=0-0
            outputs out => records=2
            share_settle M2 1:accept attempt=2 +out.0:1 => NONE
            outputs out => records=3
            describe => start=2 lag=0
        """,
    ),
    # A leader that is gone takes nothing of it either.
    Scenario(
        id="X49",
        on="server",
        given=f"""
            {OUT}
            log 0-1
            fetch M1 => [0-1]c1
            share_settle M1 0:accept +out.0:2 => NONE
        """,
        when="crash",
        then="""
            fetch M2 => [1-1]c2
            share_settle M1 0:accept +out.0:2 => INVALID_RECORD_STATE refused=0-0
            outputs out => records=2
            describe => start=1 lag=1
        """,
    ),
    # Who resumes while its settle is being written hears what it holds when that is known. It was written.
    Scenario(
        id="X50",
        on="server",
        given=HELD,
        when="r& resume M1 0-1",
        then="""
            await r => pending
            settle ok
            await a => NONE
            await r => held=1-1
            outputs out => records=2
            describe => start=1 lag=1
        """,
    ),
    # It was not.
    Scenario(
        id="X51",
        on="server",
        given=HELD,
        when="r& resume M1 0-1",
        then="""
            await r => pending
            settle fail
            await a => KAFKA_STORAGE_ERROR
            persister ok
            await r => held=0-1
            outputs out => records=0
            share_settle M1 0:accept +out.0:2 => NONE
            outputs out => records=2
        """,
    ),
    # Who resumes with less than it holds has given the rest back, unrun: that is settled no more.
    Scenario(
        id="X52",
        on="server",
        given=f"""
            {OUT}
            log 0-1
            fetch M1 => [0-1]c1
        """,
        when="resume M1 1 => held=1-1",
        then="""
            share_settle M1 0-1:accept +out.0:2 => INVALID_RECORD_STATE refused=0-0
            outputs out => records=0
            fetch M2 => [0-0]c1
            share_settle M1 1:accept +out.0:1 => NONE
            outputs out => records=1
        """,
    ),
    # --- order by key ---
    # The next of a key comes when its head is settled.
    Scenario(
        id="X53",
        given=f"""
            {OUT}
            {BY_KEY}
            log 0-3 keys=aabb
            fetch M1 => [0-0]c1 [2-2]c1
        """,
        when="share_settle M1 0:accept 2:reject +out.0:2 => NONE",
        then="""
            outputs out => records=2
            fetch M2 => [1-1]c1 [3-3]c1
            describe => start=1 lag=2
        """,
    ),
    # What is blocked was acquired by nobody: it is not settled, nor what is named beside it.
    Scenario(
        id="X54",
        given=f"""
            {OUT}
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
        """,
        when="share_settle M1 0-1:accept +out.0:1 => INVALID_RECORD_STATE refused=1-1",
        then="""
            outputs out => records=0
            fetch M2 => nothing
        """,
    ),
    # What is acquired behind a head that is being settled leaves when that is written.
    Scenario(
        id="X55",
        on="server",
        given=f"""
            {OUT}
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            persister hold
            a& share_settle M1 0:accept +out.0:1
        """,
        when="f& fetch M2 wait=10000",
        then="""
            await f => pending
            settle ok
            await a => NONE
            await f => [1-1]c1
            outputs out => records=1
            share_settle M2 1:accept +out.0:1 => NONE
            outputs out => records=2
            describe => start=2 lag=0
        """,
    ),
    # If that cannot be written, it goes back behind it.
    Scenario(
        id="X56",
        on="server",
        given=f"""
            {OUT}
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 => [0-0]c1
            persister hold
            a& share_settle M1 0:accept +out.0:1
            f& fetch M2 wait=10000
        """,
        when="settle fail",
        then="""
            persister ok
            await a => KAFKA_STORAGE_ERROR or UNKNOWN_SERVER_ERROR
            await f => error KAFKA_STORAGE_ERROR
            fetch M2 => nothing
            outputs out => records=0
            share_settle M1 0:accept +out.0:1 => NONE
            fetch M2 => [1-1]c1
            outputs out => records=1
        """,
    ),
    # Other keys go on while a head is being settled.
    Scenario(
        id="X57",
        on="core",
        given=f"""
            {OUT}
            {BY_KEY}
            log 0-3 keys=aabb
            fetch M1 max=1 => [0-0]c1
            persister hold
            a& share_settle M1 0:accept +out.0:1
        """,
        when="fetch M2 => [1-2]c1",
        then="""
            settle fail
            persister ok
            share_settle M2 2:accept +out.0:1 => NONE
            outputs out => records=1
            share_settle M2 1:accept +out.0:1 => INVALID_RECORD_STATE refused=1-1
            share_settle M1 0:accept +out.0:1 => NONE
            share_settle M2 1:accept +out.0:1 => NONE
            outputs out => records=3
        """,
    ),
    # A chain is settled one after the other.
    Scenario(
        id="X58",
        given=f"""
            {OUT}
            {BY_KEY}
            log 0-1 keys=aa
            fetch M1 chain=2 => [0-1]c1
        """,
        when="share_settle M1 1:accept +out.0:1 => INVALID_RECORD_STATE refused=1-1",
        then="""
            outputs out => records=0
            share_settle M1 0-1:accept +out.0:2 => NONE
            outputs out => records=2
        """,
    ),
    # --- in the order of the records ---
    # 45 to 49 wait until 40 to 44 are settled.
    Scenario(
        id="X59",
        on="server",
        given=f"""
            {OUT}
            log 0-49
            fetch M1 => [0-49]c1
            ack M1 0-39:accept => NONE
        """,
        when="a& share_settle M1 45-49:accept ordered=yes +out.0:5",
        then="""
            await a => pending
            outputs out => records=0
            describe => start=40 lag=10
            share_settle M1 40-44:accept ordered=yes +out.0:3 => NONE
            await a => NONE
            outputs out => records=8
            describe => start=50 lag=0
        """,
    ),
    # The start offset is the first one that is not finished, and what is finished behind it is no lag.
    Scenario(
        id="X60",
        on="server",
        given=f"""
            {OUT}
            log 0-49
            fetch M1 => [0-49]c1
            ack M1 0-39:accept => NONE
            share_settle M1 43-45:accept +out.0:1 => NONE
            share_settle M1 48-49:accept +out.0:1 => NONE
            describe => start=40 lag=5
            a& share_settle M1 46-47:accept ordered=yes +out.0:1
            await a => pending
        """,
        when="share_settle M1 40-42:accept ordered=yes +out.0:1 => NONE",
        then="""
            await a => NONE
            outputs out => records=4
            describe => start=50 lag=0
        """,
    ),
    # They may come in any order, and each waits for those before it only.
    Scenario(
        id="X61",
        on="server",
        given=f"""
            {OUT}
            log 0-3
            fetch M1 => [0-3]c1
            c& share_settle M1 3:accept ordered=yes +out.0:1
            a& share_settle M1 1:accept ordered=yes +out.0:1
            b& share_settle M1 2:reject ordered=yes +out.0:1
        """,
        when="share_settle M1 0:accept +out.0:1 => NONE",
        then="""
            await a => NONE
            await b => NONE
            await c => NONE
            outputs out => records=4
            describe => start=4 lag=0
        """,
    ),
    # What another member has before them keeps them waiting, until that one has ended it, however it does.
    Scenario(
        id="X62",
        on="server",
        given=f"""
            {OUT}
            log 0 1-2
            fetch M1 max=1 mode=record_limit => [0-0]c1
            fetch M2 => [1-2]c1
            a& share_settle M2 1-2:accept ordered=yes +out.0:1
            await a => pending
        """,
        when="ack M1 0:reject => NONE",
        then="""
            await a => NONE
            outputs out => records=1
            describe => start=3 lag=0
        """,
    ),
    # It waits for five seconds at most; then its member has the records still, and may ask again.
    Scenario(
        id="X63",
        on="server",
        given=f"""
            {OUT}
            log 0-1
            fetch M1 => [0-1]c1
            a& share_settle M1 1:accept ordered=yes +out.0:1
            await a => pending
        """,
        when="time 5000",
        then="""
            await a => REQUEST_TIMED_OUT refused=none
            outputs out => records=0
            b& share_settle M1 1:accept ordered=yes +out.0:1
            await b => pending
            share_settle M1 0:accept +out.0:1 => NONE
            await b => NONE
            outputs out => records=2
        """,
    ),
    # What is not the member's does not wait.
    Scenario(
        id="X64",
        on="server",
        given=f"""
            {OUT}
            log 0-2
            fetch M1 => [0-2]c1
            ack M1 2:release => NONE
        """,
        when="""
            share_settle M1 2:accept ordered=yes +out.0:1 => INVALID_RECORD_STATE refused=2-2
            share_settle M2 1:accept ordered=yes +out.0:1 => INVALID_RECORD_STATE refused=1-1
        """,
        then="outputs out => records=0",
    ),
    # Nor does what is taken from the member while it waits.
    Scenario(
        id="X65",
        on="server",
        given=f"""
            {OUT}
            config lock=15000
            log 0-1
            fetch M1 => [0-1]c1
            time 12000
            a& share_settle M1 1:accept ordered=yes +out.0:1
            await a => pending
        """,
        when="time 3000",
        then="""
            await a => INVALID_RECORD_STATE refused=1-1
            outputs out => records=0
            fetch M2 => [0-1]c2
        """,
    ),
    # Its records follow each other.
    Scenario(
        id="X66",
        on="server",
        given=f"""
            {OUT}
            log 0-2
            fetch M1 => [0-2]c1
        """,
        when="share_settle M1 0:accept 2:accept ordered=yes +out.0:1 => INVALID_REQUEST",
        then="""
            outputs out => records=0
            share_settle M1 0:accept 1-2:accept ordered=yes +out.0:1 => NONE
            outputs out => records=1
        """,
    ),
)

LEFT = ()
