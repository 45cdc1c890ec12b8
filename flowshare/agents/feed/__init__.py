"""Records in, acknowledgements out: all work of one agent that happens on the service loop.

- `feeder`: `Feeder`, which holds the parts together; `members`: its member of the group, or two with a retry topic.
- `setup`, `backend_limits`: topics and settings that an agent needs before fetching, within the limits of backend and
brokers.
- `prefetch`: the number of records to fetch, and fetching ahead; `reader`: fetched bytes become chunks of records.
- `locks`: held records and the renewal of their locks; `standstill`: no handler begins after the process stood still.
- `completion`, `dead_letter`, `delays`: carry out outcomes; `acknowledgements`: how these are sent and confirmed.
- `settle_units`: records that are settled together with their outputs; `settler`: how units are sent, and sent again.
- `stalls`: the reason why nothing is fetched.

Handlers run in `agents.run`; the protocol to the group's coordinator and leaders is `flowshare.client`'s.
"""
