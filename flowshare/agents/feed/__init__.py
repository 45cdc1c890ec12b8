"""Records in, acknowledgements out: everything of one agent that happens on the service loop.

- `feeder`: `Feeder`, the whole of it; `members`: its member of the group, or two with a retry topic.
- `setup`, `limits`: what must be there before it fetches, and what backend and brokers allow.
- `prefetch`: how much to fetch, and fetching ahead; `reader`: what came as chunks of records.
- `locks`: what is held, and its locks renewed; `standstill`: no handler begins after the process stood still.
- `completion`, `dead_letter`, `delays`: what outcomes ask for; `acknowledgements`: how they are sent and confirmed.
- `units`: records that are settled together with their outputs; `settler`: how they are sent, and sent again.
- `stalls`: why nothing is fetched.

Handlers run in `agents.run`; the protocol to the group's coordinator and leaders is `flowshare.client`'s.
"""
