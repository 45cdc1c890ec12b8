"""Locks and renewal (SG-7.5, SG-8): the L scenarios."""

from tests.scenarios.language import Scenario

TAKEN = """
    config lock=15000
    log 0-9
    fetch M1 => [0-9]c1
"""

SCENARIOS = (
    # A lock is kept to its last millisecond; when it is over the records come again, as a second delivery.
    Scenario(
        id="L01",
        given=TAKEN,
        when="""
            time 14999
            fetch M2 => nothing
            time 1
        """,
        then="fetch M2 => [0-9]c2",
    ),
    # Who acknowledges after its lock lapsed is refused; who holds the records now is not.
    Scenario(
        id="L02",
        given=f"""
            {TAKEN}
            time 15000
        """,
        when="ack M1 0-9:accept => INVALID_RECORD_STATE",
        then="""
            fetch M2 => [0-9]c2
            ack M1 0-9:accept => INVALID_RECORD_STATE
            ack M2 0-9:accept => NONE
        """,
    ),
    # A lock that lapses at the delivery limit gives its records up, and the start offset passes them.
    Scenario(
        id="L03",
        given=f"""
            config delivery=2
            {TAKEN}
            time 15000
            fetch M1 => [0-9]c2
        """,
        when="time 15000",
        then="""
            fetch M1 => nothing
            describe => start=10 lag=0
        """,
    ),
    # Only what is not acknowledged comes again when a lock lapses.
    Scenario(
        id="L04",
        given=f"""
            {TAKEN}
            ack M1 0-4:accept => NONE
        """,
        when="time 15000",
        then="""
            describe => start=5 lag=5
            fetch M2 => [5-9]c2
        """,
    ),
    # Locks lapse although nothing can be written meanwhile.
    Scenario(
        id="L05",
        given=f"""
            {TAKEN}
            persister fail
        """,
        when="time 15000",
        then="""
            persister ok
            fetch M2 => [0-9]c2
        """,
    ),
    # A renewal begins the lock anew, and costs no delivery.
    Scenario(
        id="L06",
        given=f"""
            {TAKEN}
            time 14999
        """,
        when="ack M1 0-9:renew => NONE",
        then="""
            time 14999
            fetch M2 => nothing
            time 1
            fetch M2 => [0-9]c2
        """,
    ),
    # One call may accept a record and renew another one.
    Scenario(
        id="L07",
        given="""
            config lock=15000
            log 0-1
            fetch M1 => [0-1]c1
            time 10000
        """,
        when="ack M1 0-1:renew,accept => NONE",
        then="""
            describe => start=0 lag=1
            time 14999
            fetch M2 => nothing
            ack M1 0:renew => NONE
            time 15000
            fetch M2 => [0-0]c2
        """,
    ),
    # A lapsed lock cannot be renewed.
    Scenario(
        id="L08",
        given=f"""
            {TAKEN}
            time 15000
        """,
        when="ack M1 0-9:renew => INVALID_RECORD_STATE",
        then="fetch M2 => [0-9]c2",
    ),
    # Where the group has renewal turned off it is refused, and the record stays with its member.
    Scenario(
        id="L09",
        given=f"""
            config renew=false
            {TAKEN}
        """,
        when="ack M1 0-9:renew => INVALID_RECORD_STATE",
        then="ack M1 0-9:accept => NONE",
    ),
    # A consumer that renewed a record can say nothing else of it before the next poll hands it out again.
    Scenario(
        id="L10",
        on="server",
        given="""
            log 0-9
            consumer C1 mode=explicit
            poll C1 => 0-9
        """,
        when="acknowledge C1 0:renew => ok",
        then="acknowledge C1 0:reject => raises IllegalState",
    ),
    # Renewed records come with the next poll, alone, and are acknowledged then.
    Scenario(
        id="L11",
        on="server",
        given="""
            log 0-9
            consumer C1 mode=explicit
            poll C1 => 0-9
        """,
        when="""
            acknowledge C1 1:accept 3:accept 5:accept 7:accept 9:accept => ok
            acknowledge C1 0:renew 2:renew 4:renew 6:renew 8:renew => ok
            poll C1 => 0-0,2-2,4-4,6-6,8-8
        """,
        then="""
            acknowledge C1 0:accept 2:accept 4:accept 6:accept 8:accept => ok
            commit C1 => ok
            describe => start=10 lag=0
            poll C1 => nothing
            callbacks C1 => acknowledged=15
        """,
    ),
    # After its leader's crash a renewed record comes again, as a second delivery.
    Scenario(
        id="L12",
        given=f"""
            {TAKEN}
            ack M1 0-9:renew => NONE
        """,
        when="crash",
        then="fetch M2 => [0-9]c2",
        note="An acquire is durable here, so the attempt counts; Kafka forgets it and delivers c1.",
    ),
    # A changed lock duration is in the next answer.
    Scenario(
        id="L13",
        on="server",
        given="""
            config lock=15000
            log 0-9
            fetch M1 => [0-9]c1 lock=15000
        """,
        when="config lock=25000",
        then="fetch M1 => nothing lock=25000",
    ),
    # A consumer hears of a changed lock duration with its next records.
    Scenario(
        id="L13",
        on="server",
        given="""
            config lock=15000
            log 0-9 10-19
            consumer C1 mode=implicit max=10
            poll C1 => 0-9
            lock_timeout C1 => 15000
        """,
        when="""
            config lock=25000
            lock_timeout C1 => 15000
        """,
        then="""
            poll C1 => 10-19
            lock_timeout C1 => 25000
        """,
    ),
    # A member that leaves gives back what it held, and nothing of others.
    Scenario(
        id="L14",
        given="""
            log 0-4 5-9
            fetch M1 max=5 => [0-4]c1
            fetch M2 max=5 => [5-9]c1
        """,
        when="close M1",
        then="""
            fetch M3 => [0-4]c2
            ack M2 5-9:accept => NONE
        """,
    ),
    # What lies before a log start that moved does not come again when its member leaves.
    Scenario(
        id="L15",
        given="""
            log 0-4 5-9
            fetch M1 batch=1 => [0-4]c1 [5-9]c1
            logstart 5
            fetch M2 => nothing
        """,
        when="close M1",
        then="""
            fetch M2 => [5-9]c2
            describe => start=5 lag=5
        """,
    ),
    # A renewal of single offsets gives these a time of their own.
    Scenario(
        id="L16",
        on="core",
        given="""
            log 0-4 5-9
            fetch M1 batch=1 => [0-4]c1 [5-9]c1
            locks => 0-9:M1@30000
            time 1000
        """,
        when="ack M1 0-4:renew 5:renew 7:renew => NONE",
        then="""
            locks => 0-5:M1@31000 6-6:M1@30000 7-7:M1@31000 8-9:M1@30000
            time 29000
            fetch M2 => [6-6]c2 [8-9]c2
            time 1000
            fetch M2 => [0-5]c2 [7-7]c2 or [0-4]c2 [5-5]c2 [7-7]c2
        """,
    ),
)

LEFT = ()
