"""One slot at a worker: its part of the state topic, read, kept locally, written to.

`topic` is the topic itself. `slot` is one slot from being followed to being given away; it reads by `reading`, writes
by `writing` over a `sender`, and starts quickly by `cache`. Settles with outputs are carried by `outputs`, in
transactions of the slot's `lanes`, each of them a `lane`. What lies in the log and what of it counts is decided in
`flowshare.slots`; which slots are this worker's, in `flowshare.fleet.slot_manager`.
"""
