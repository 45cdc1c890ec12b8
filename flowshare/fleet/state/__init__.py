"""One slot at a worker: its part of the state topic, read, kept locally, written to.

`topic` is the topic itself. `slot` is one slot from being followed to being given away; it reads by `reading`, writes
by `writing` over a `sender`, and starts quickly by `cache`. `outputs` carries settles with outputs, in transactions of
the slot's `lanes`, each of them a `lane`. `flowshare.slots` decides which records of the log count;
`flowshare.fleet.slot_manager` knows which slots are this worker's.
"""
