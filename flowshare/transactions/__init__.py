"""The core of producers and transactions: who writes what, what is open, what was aborted (KIP-98, KIP-360). No I/O.

`producers` and `partition` are what a partition knows of idempotent producers and what it takes from them, `aborted`
what readers of committed records skip; `transaction` and `coordinator` are a transactional id and what becomes of it at
each request; `stored` is the form in the store. Writing markers and waiting is for
`server.transactions` and `log.partition`.
"""
