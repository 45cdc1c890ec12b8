"""The core of producers and transactions: producers' batches, open and aborted transactions (KIP-98, KIP-360). No I/O.

`producers` and `partition` are a partition's knowledge of idempotent producers and its checks of their batches,
`aborted` the transactions that readers of committed records skip; `transaction` and `coordinator` are a transactional
id and its next state at each request; `stored` is the form in the store. `server.transactions` and `log.partition`
write markers and wait.
"""
