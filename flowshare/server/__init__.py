"""The server: share groups, consumer groups, transactions, topics and records behind Kafka's protocol.

It is a Kafka broker to whoever connects to it, and is called with plain objects by a client in the same process. What
it decides is decided by the cores (`flowshare.share`, `groups`, `transactions`); here is what surrounds them: tasks,
storage, memory, sockets, rights. From the outside in:

    standalone    a broker by itself: storage, server, listener, opened and closed in order
    settings      all settings of a server, from a server.properties or words
    net           sockets, bytes, limits of a listener
    edge          Kafka's messages to plain ones and back; rights are asked for here
    server        all parts put together, one table from request to handler
    records       topics, configs, produce, fetch: what needs no group
    share         share groups and share-partitions
    groups        classic consumer groups and committed offsets;  transactions    producers and their transactions
    runtime       what the coordinators and handlers stand on;    security        who may log in, and who may do what

Each imports only what is below it. Where the state lies is not decided here: a server is given a storage
(`flowshare.log`, or a fleet's). A fleet's worker uses `share` and `edge` over a storage of its own (`flowshare.fleet`).
"""
