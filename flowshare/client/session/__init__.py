"""One member of a share group: joining, fetching, acknowledging, and what it holds (KIP-932).

    member          `ShareMember`: what consumers, agents and Spark use
    membership      heartbeats, the member's epoch, its assignment
    core            decides what is sent and says what is true; no I/O, so that a simulation can test it
    share_session   a part of it: one broker, its session's epochs, its turn, what waits for it
    custody         a part of it: what is held, where each partition is at home, and whose leader is looked up
    calls           a part of it: outcomes that are waited for
    commands        what the core says is to be done
    shell           does it, over links, with one timer
    arrivals        what fetches brought and nobody has taken yet
    ranges          what a member hands out and takes back

Records one by one are `client.consumer`'s; how a broker is reached is `client.net`'s.
"""
