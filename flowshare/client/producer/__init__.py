"""Sending records: the one producer, idempotent on every backend, transactional where asked.

    producer     `Producer`: what users, the agents' outbox and Spark's sink call
    message      one record as it is sent, what is no record, and where a keyed one goes
    batching     batches, who is told of what became of them, the bounded buffer
    sequence     the core, without I/O: which batch is sent next, under which number
    sender       one partition: the linger, the requests under way, what an answer means
    channel      what all partitions share: the connection, the producer id, the sizes of topics
    transaction  begin, commit, abort

It runs over the project's own connections (`client.net`); aiokafka compiles its record batches and nothing else
(`protocol.batches`). Not here: what the server makes of a batch (`transactions`, `log`), Faust's own producer
(`agents.faust`), and a slot's only writer, whose epoch must not grow by itself (`fleet.state.sender`).
"""
