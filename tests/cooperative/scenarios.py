"""The scenarios of cooperative groups that the core can show, by their numbers, and why the others are left.

Words of the steps: `subject`. Expectations are computed by hand from the model, not read off the core.
"""

from __future__ import annotations

from tests.scenarios.language import Left, Scenario


def core(number: str, given: str, when: str, then: str = "", note: str = "") -> Scenario:
    """One scenario on the core."""
    return Scenario(id=number, on="core", given=given, when=when, then=then, note=note)


COMMITS = (
    core("1", "begin 43", "commit [45,48) [50,51) => ok s=43 r=[45,48)[50,51) m=51 log=put[45,48),put[50,51)"),
    core(
        "2",
        "begin 43 [45,48) [50,51)",
        "commit [48,50) => ok s=43 r=[45,51) m=51 log=put[45,51),del50",
        note="a range is stored by its first offset: one that grows at its end is overwritten, so one deletion is less",
    ),
    core("3", "begin 43 [45,48)", "commit [43,45) => ok s=48 r=none m=48 log=stable48,del45"),
    core(
        "4",
        "begin 43 [45,48) [50,51)",
        "commit [43,45) [48,50) => ok s=51 r=none m=51 log=stable51,del45,del50",
    ),
    core("5", "begin 10 [12,15) [20,25)", "commit [13,23) => ok s=10 r=[12,25) m=25 log=put[12,25),del20"),
    core(
        "6",
        "begin 10 [12,15)",
        """
        commit [2,7) => ok s=10 r=[12,15) log=none
        commit [8,12) => ok s=15 r=none log=stable15,del12
        """,
    ),
    core(
        "7",
        "begin 10",
        """
        commit [12,15) => ok s=10 r=[12,15) log=put[12,15)
        commit [12,15) => ok s=10 r=[12,15) log=none
        commit [20,25) => ok r=[12,15)[20,25)
        restart => ok s=10 r=[12,15)[20,25)
        commit [20,25) => ok s=10 r=[12,15)[20,25) log=none
        """,
    ),
    core(
        "8",
        "begin 0",
        "commit [30,40) [50,60) [10,20) [0,10) [40,50) [20,30) => ok s=60 r=none",
        """
        begin 0
        commit [50,60) => ok s=0 r=[50,60)
        commit [10,20) => ok s=0 r=[10,20)[50,60)
        commit [30,40) => ok s=0 r=[10,20)[30,40)[50,60)
        commit [20,30) => ok s=0 r=[10,40)[50,60)
        commit [0,10) => ok s=40 r=[50,60)
        commit [40,50) => ok s=60 r=none
        """,
        note="all permutations: test_offsets",
    ),
    core(
        "9",
        "begin 0 free=yes",
        """
        hold A [0,4) => ok held=[0,4)@1
        hold B [4,8) => ok held=[4,8)@2
        commit [10,15) by=A keys=[0,4) epoch=1 => ok r=[10,15)
        commit [15,20) by=B keys=[4,8) epoch=2 => ok s=0 r=[10,20) log=put[10,20)
        restart => ok s=0 r=[10,20)
        """,
    ),
    core("10", "begin 40 [50,55) [70,72)", "sequential 60 => ok s=60 r=[70,72) m=72 log=stable60,del50"),
    core(
        "11",
        "begin 40 [50,55)",
        """
        sequential 30 => ok s=40 r=[50,55) log=none
        sequential 40 => ok s=40 r=[50,55) log=none
        sequential 52 => ok s=55 r=none log=stable55,del50
        """,
        note="below the stable offset nothing happens, and nobody is told off: the offset is committed",
    ),
    core(
        "12",
        "begin 43 [45,48) [50,51) [60,62)",
        """
        crash 0 commit [48,50) [43,44) => ok s=43 r=[45,48)[50,51)[60,62)
        crash 1 commit [48,50) [43,44) => ok s=43 r=[45,51)[60,62)
        crash 2 commit [48,50) [43,44) => ok s=44 r=[45,51)[60,62)
        restart => ok s=44 r=[45,51)[60,62)
        commit [44,45) => ok s=51 r=[60,62) log=stable51,del45
        """,
    ),
    core(
        "13",
        "begin 43 [45,48) [50,51)",
        """
        commit [48,50) => ok r=[45,51)
        stale [50,51) [48,50) [46,47) => ok s=43 r=[45,51)
        commit [43,45) => ok s=51 r=none
        stale [45,48) [45,51) [50,51) => ok s=51 r=none
        """,
    ),
    core(
        "14",
        "begin 99",
        "commit [99,200) => ok s=200 r=none log=stable200",
        note="who sees the whole partition commits the hole 100–199 with the record before it; that is the member's",
    ),
    core(
        "15",
        """
        begin 98 free=yes
        hold A [0,4) => ok held=[0,4)@1
        hold B [4,8) => ok held=[4,8)@2
        """,
        """
        commit [98,99) by=B keys=[4,8) epoch=2 => ok s=99
        commit [200,201) by=B keys=[4,8) epoch=2 => ok s=99 r=[200,201)
        commit [99,200) by=A keys=[0,1) epoch=1 => ok s=201 r=none
        """,
        note="the void 99–199 is committed by the holder of hash 0",
    ),
    core(
        "16",
        "begin 0",
        """
        commit [0,3) => ok s=3
        commit [3,4) [4,7) => ok s=7 log=stable7
        """,
        note="markers and aborted records are void to the core; which offsets are, the member sees",
    ),
    core(
        "17",
        "begin 10 [20,30) [40,50)",
        """
        logstart 5 => ok s=10 lost=0 log=none
        logstart 25 => ok s=30 r=[40,50) lost=10 log=stable30,del20
        logstart 35 => ok s=35 r=[40,50) lost=5
        logstart 100 => ok s=100 r=none lost=55
        """,
    ),
    core(
        "18",
        "begin 10 [20,30) [40,50)",
        """
        commit [60,71) end=70 => error OFFSET_OUT_OF_RANGE s=10 r=[20,30)[40,50)
        commit [60,70) end=70 => ok r=[20,30)[40,50)[60,70)
        truncate 45 => ok s=10 r=[20,30)[40,45) m=45 e=1 log=stable10,put[20,30),put[40,45),del60
        commit [45,46) e=0 => error FENCED_STATE_EPOCH r=[20,30)[40,45)
        truncate 5 => ok s=5 r=none e=2
        """,
        note="after a cut E grows: what members had read is other records now",
    ),
    core(
        "19",
        "begin 0 ranges=100",
        """
        commit [1,201)step2 => ok s=0 r=100-ranges m=200
        commit [203,204) => error THROTTLING_QUOTA_EXCEEDED s=0 r=100-ranges m=200
        commit [2,3) => ok s=0 r=99-ranges
        commit [0,1) => ok s=4 r=98-ranges
        commit [203,204) [205,206) => ok r=100-ranges
        commit [207,208) [4,5) => ok s=6 r=100-ranges
        commit [300000,300001) [6,7) => error THROTTLING_QUOTA_EXCEEDED s=6 m=208
        """,
        note="the bound of 60,000 by itself: test_offsets. Splitting a request and pausing the intake are the member's",
    ),
    core(
        "20",
        "begin 7",
        """
        commit [8,50008) => ok s=7 r=[8,50008)
        bytes => ok bytes=30 ranges=1
        commit [50008,60000) => ok s=7 r=[8,60000)
        bytes => ok bytes=30 ranges=1
        """,
    ),
    core(
        "21",
        "begin 43 [45,51)",
        """
        restart => ok s=43 r=[45,51)
        open [0,60) => ok free=[43,45)[51,60)
        """,
    ),
    core(
        "22",
        "begin 43 [45,51)",
        """
        spoil => ok s=43 r=none
        open [0,60) => ok free=[43,60)
        """,
        note="metadata and leader epoch stay with the group's ordinary committed offset, which is the server's",
    ),
    core(
        "23",
        "begin 43 [45,51)",
        """
        reset 0 => error NON_EMPTY_GROUP s=43
        leave m => ok held=none
        reset 0 => ok s=0 r=none e=1 log=stable0,del45
        stale [45,51) e=0 => ok s=0 r=none e=1
        hold m [0,8) => ok held=[0,8)@2
        commit [45,51) e=0 epoch=2 => error FENCED_STATE_EPOCH s=0 r=none
        commit [0,2) e=1 epoch=2 => ok s=2 e=1
        """,
    ),
    core(
        "24",
        "begin 43 [45,51)",
        """
        delete 10 e=5 => ok s=10 r=none
        stale [45,51) e=0 => ok s=10 r=none e=5
        """,
        note="the epoch that a new partition begins with is the server's to choose, from the clock",
    ),
)
ASSIGNMENTS = (
    core("26", "", "assign 5 3 => ok pa=M1[0,4)/M4[4,8) pb=M2[0,4)/M5[4,8) pc=M3[0,8) idle=none"),
    core(
        "27",
        "",
        """
        assign 3 3 => ok pa=M1[0,8) pb=M2[0,8) pc=M3[0,8)
        assign 2 3 => ok pa=M1[0,8) pb=M1[0,8) pc=M2[0,8)
        """,
    ),
    core(
        "28",
        "",
        """
        assign 7 3 => ok shares=3,2,2
        assign 6 3 fresh=yes => ok shares=2,2,2 pa=M1[0,4)/M4[4,8) pc=M3[0,4)/M6[4,8)
        assign 4 1 fresh=yes => ok pa=M1[0,2)/M2[2,4)/M3[4,6)/M4[6,8)
        assign 1 1 fresh=yes => ok pa=M1[0,8)
        """,
    ),
    core(
        "29",
        "",
        """
        assign 3 1 fresh=yes => ok pa=M1[0,715827882)/M2[715827882,1431655765)/M3[1431655765,2147483648)
        assign 2 1 fresh=yes => ok pa=M1[0,4)/M2[4,8)
        """,
        note="any number of members and partitions: test_assignor",
    ),
    core(
        "30",
        "",
        """
        assign 3 2 topics=t,u unshared=u => ok ta=M1[0,4)/M3[4,8) tb=M2[0,8) ua=M1[0,8) ub=M2[0,8)
        assign 3 2 unwilling=M2 => ok pa=M1[0,8) pb=M2[0,8) idle=M3
        """,
    ),
    core(
        "31",
        "assign 5 3 => ok pa=M1[0,4)/M4[4,8) pb=M2[0,4)/M5[4,8) pc=M3[0,8)",
        """
        assign 5 3 => ok pa=M1[0,4)/M4[4,8) pb=M2[0,4)/M5[4,8) pc=M3[0,8)
        assign 5 3 without=M4 => ok pa=M1[0,8) pb=M2[0,4)/M5[4,8) pc=M3[0,8)
        assign 5 3 without=M4 => ok pa=M1[0,8) pb=M2[0,4)/M5[4,8) pc=M3[0,8)
        """,
    ),
    core(
        "32",
        "begin 0 free=yes",
        """
        manual [0,4) [2,6) => error INVALID_REQUEST
        manual [0,9) => error INVALID_REQUEST
        manual => ok keys=[0,8)
        manual [6,8) [0,4) => ok keys=[0,4)[6,8)
        hold A [0,4) [6,8) => ok held=[0,4)@1,[6,8)@1
        claims => ok held=[0,4)A,[6,8)A unowned=2
        """,
        note="a hole is no error: what nobody holds is told as a number",
    ),
    core(
        "33",
        """
        begin 0 free=yes ranges=50
        hold A [0,4) => ok held=[0,4)@1
        hold B [4,8) => ok held=[4,8)@2
        """,
        """
        commit [1,101)step2 by=B keys=[4,8) epoch=2 => ok s=0 r=50-ranges
        commit [101,102) by=B keys=[4,8) epoch=2 => error THROTTLING_QUOTA_EXCEEDED s=0 r=50-ranges
        commit [0,1) [2,3) by=A keys=[0,4) epoch=1 => ok s=4 r=48-ranges
        commit [101,102) by=B keys=[4,8) epoch=2 => ok s=4 r=49-ranges
        """,
    ),
    core(
        "34",
        "assign 5 3 => ok pa=M1[0,4)/M4[4,8) pb=M2[0,4)/M5[4,8) pc=M3[0,8)",
        "assign 5 4 => ok pa=M1[0,4)/M4[4,8) pb=M2[0,8) pc=M3[0,8) pd=M5[0,8)",
        note="one member moves to the new partition; what the others hold is as it was, or grows",
    ),
)
DRAINING = (
    core(
        "36",
        "begin 0 free=yes",
        """
        hold M1 [0,8) g=1 => ok held=[0,8)@1
        hold M2 [4,8) g=2 => ok held=none blocked=[4,8)M1 attempts=1
        hold M1 [0,4) [5,6) g=2 => ok held=[0,4)@1,[5,6)@1
        hold M2 [4,8) g=2 => ok held=[4,5)@2,[6,8)@2 blocked=[5,6)M1 attempts=2
        commit [0,1) by=M1 keys=[5,6) epoch=1 => ok s=1
        hold M1 [0,4) g=2 => ok held=[0,4)@1
        hold M2 [4,8) g=2 => ok held=[4,8)@2 blocked=none s=1
        """,
    ),
    core(
        "37",
        "begin 0 free=yes",
        """
        hold M1 [0,8) g=1 => ok held=[0,8)@1
        wait 9999 => ok held=[0,8)M1
        hold M2 [0,8) g=2 => ok held=none blocked=[0,8)M1
        wait 1 => ok held=none unowned=8
        hold M2 [0,8) g=2 => ok held=[0,8)@2 s=0
        """,
    ),
    core(
        "38",
        """
        begin 0 free=yes
        hold M1 [0,8) g=1 => ok held=[0,8)@1
        """,
        """
        wait 10000 => ok held=none
        commit [0,1) by=M1 epoch=1 => FENCED s=0 r=none log=none
        hold M2 [0,8) g=2 => ok held=[0,8)@2
        commit [0,2) by=M2 epoch=2 => ok s=2
        commit [5,6) by=M1 epoch=1 => FENCED s=2 r=none log=none
        commit [5,6) by=M1 epoch=2 => FENCED s=2 r=none
        """,
    ),
    core(
        "39",
        """
        begin 0 free=yes
        hold M1 [0,8) g=1 => ok held=[0,8)@1
        hold M2 [4,8) g=2 => ok blocked=[4,8)M1
        """,
        """
        hold M2 g=3 => ok held=none blocked=none
        hold M1 [0,8) g=3 => ok held=[0,8)@1 blocked=none attempts=1
        commit [3,4) by=M1 epoch=1 => ok r=[3,4)
        hold M1 [0,4) g=4 => ok held=[0,4)@1
        hold M2 [4,8) g=4 => ok held=[4,8)@2
        hold M2 g=5 => ok held=none
        hold M1 [0,8) g=5 => ok held=[0,4)@1,[4,8)@3
        commit [5,6) by=M1 keys=[4,8) epoch=1 => FENCED r=[3,4)
        commit [6,7) by=M1 keys=[0,4) epoch=1 => ok r=[3,4)[6,7)
        commit [8,9) by=M1 keys=[2,6) epoch=3 => ok r=[3,4)[6,7)[8,9)
        """,
        note="what came back before it was given up is the same claim; what was another member's is a new one",
    ),
    core(
        "40",
        """
        begin 0 free=yes
        hold M1 [0,8) g=1 => ok held=[0,8)@1
        """,
        """
        hold M1 [0,4) [7,8) g=2 => ok held=[0,4)@1,[7,8)@1
        hold M2 [4,8) g=2 => ok held=[4,7)@2 blocked=[7,8)M1
        commit [9,10) by=M1 keys=[7,8) epoch=1 => ok r=[9,10)
        hold M1 [0,4) g=2 => ok held=[0,4)@1
        hold M2 [4,8) g=2 => ok held=[4,8)@2
        open [0,12) => ok free=[0,9)[10,12)
        """,
        note="a record that waits for its retry counts as in flight: its member goes on wanting the keys",
    ),
    core(
        "41",
        """
        begin 0 free=yes
        hold M1 [0,8) g=1 => ok held=[0,8)@1
        hold M2 [4,8) g=2 => ok blocked=[4,8)M1
        """,
        """
        wait 4999 => ok held=[0,8)M1
        hold M1 [0,8) g=2 => ok held=[0,8)@1
        hold M2 [4,8) g=2 mode=available => ok held=none blocked=[4,8)M1 overlaps=0
        wait 1 => ok held=[0,8)M1
        hold M2 [4,8) g=2 mode=strict => ok held=none blocked=[4,8)M1 overlaps=0
        hold M2 [4,8) g=2 mode=available => ok held=[4,8)@2 taken=[4,8)M1 overlaps=1
        commit [3,4) by=M1 keys=[4,8) epoch=1 => FENCED r=none
        commit [2,3) by=M1 keys=[0,4) epoch=1 => ok r=[2,3)
        hold M1 [0,8) g=2 => ok held=[0,4)@1 blocked=[4,8)M2
        """,
    ),
)
TRANSACTIONS = (
    core(
        "43",
        "begin 0",
        """
        reserve m 7 0 [0,5) => ok s=0 p=[0,5) log=pending7
        complete 7 0 commit => ok s=5 p=none log=stable5,ended7
        reserve m 7 0 [5,8) => ok s=5 p=[5,8)
        complete 7 0 abort => ok s=5 r=none p=none log=ended7
        open [0,10) => ok free=[5,10)
        """,
    ),
    core(
        "44",
        """
        begin 0
        reserve m 1 0 [0,5) [10,15) => ok p=[0,5)[10,15)
        reserve m 2 0 [5,10) [15,20) => ok p=[0,20)
        """,
        """
        complete 2 0 commit g=1 => ok s=0 r=[5,10)[15,20) released=none parked=1
        complete 1 0 commit g=1 => ok s=20 r=none released=1,2 parked=0
        """,
    ),
    core(
        "45",
        """
        begin 0
        reserve m 1 0 [0,5) => ok
        reserve m 2 0 [5,10) => ok
        complete 2 0 commit g=1 => ok s=0 r=[5,10) released=none parked=1
        """,
        """
        complete 1 0 abort g=1 => ok s=0 r=[5,10) released=none parked=1
        open [0,12) => ok free=[0,5)[10,12)
        reserve m 1 0 [0,5) => ok p=[0,5)
        complete 1 0 commit g=1 => ok s=10 r=none released=1,2 parked=0
        """,
    ),
    core(
        "46",
        """
        begin 0 free=yes
        hold M1 [0,8) g=1 => ok held=[0,8)@1
        reserve M1 7 0 [0,5) keys=[0,2) => ok p=[0,5)
        """,
        """
        wait 10000 => ok held=none
        hold M2 [0,8) g=2 => ok held=[2,8)@2 blocked=[0,2)transaction-of-producer-7
        restart => ok s=0
        hold M2 [0,8) g=2 => ok held=[2,8)@2 blocked=[0,2)transaction-of-producer-7
        complete 7 1 abort => ok s=0 r=none p=none
        hold M2 [0,8) g=2 => ok held=[0,2)@3,[2,8)@2 blocked=none
        open [0,9) => ok free=[0,9)
        """,
    ),
    core(
        "47",
        """
        begin 0
        reserve m 7 0 [0,5) => ok p=[0,5)
        """,
        """
        reserve m 7 1 [10,12) => ok p=[10,12)
        reserve m 7 0 [6,7) => error INVALID_PRODUCER_EPOCH
        complete 7 0 commit => error INVALID_PRODUCER_EPOCH s=0 r=none
        complete 7 1 commit => ok s=0 r=[10,12)
        """,
    ),
    core(
        "48",
        """
        begin 0
        reserve m 7 0 [2,5) => ok p=[2,5)
        """,
        """
        stable => UNSTABLE s=0 r=none
        complete 7 0 commit => ok
        stable => ok s=0 r=[2,5)
        """,
    ),
    core(
        "49",
        """
        begin 0
        reserve m 1 0 [2,3) => ok
        complete 1 0 commit g=1 => ok parked=1
        reserve m 2 0 [4,5) => ok
        complete 2 0 commit g=1 => ok parked=2
        reserve m 3 0 [6,7) => ok
        """,
        """
        complete 3 0 commit g=1 => error THROTTLING_QUOTA_EXCEEDED s=0 r=[2,3)[4,5)[6,7)
        rebalance 1 => ok failed=none
        rebalance 2 => ok failed=1,2
        reserve m 4 0 [8,9) => ok
        complete 4 0 commit g=2 => ok parked=1
        wait 999 => ok
        expire => ok failed=none
        wait 1 => ok
        expire => ok failed=4
        commit [0,2) => ok s=3 r=[4,5)[6,7)[8,9)
        release => ok released=none
        """,
        note="the commit of one that may not wait is durable all the same: the wait is only for who wants to see it",
    ),
    core(
        "50",
        """
        begin 0
        reserve m 7 0 [0,5) => ok p=[0,5)
        """,
        """
        commit [2,4) => ok r=[2,4)
        complete 7 0 abort => ok s=0 r=[2,4) p=none
        """,
    ),
)
SCENARIOS = (*COMMITS, *ASSIGNMENTS, *DRAINING, *TRANSACTIONS)
LEFT = (
    Left("25", "members join by Kafka's protocol: that a group's only protocol is this one is the member's"),
    Left("35", "a rolling restart under load has handlers: the member's; claims in a random world: test_world"),
    Left("42", "joins and leaves every 0–500 ms have rebalances: the member's; claims in a random world: test_world"),
)
IDS = tuple(str(number) for number in range(1, 51))
