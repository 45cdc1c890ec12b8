"""The server: share groups, consumer groups, transactions, topics and records behind Kafka's protocol.

The server is a Kafka broker to every client that connects, and is called with plain objects by a client in the same
process. The cores (`flowshare.share`, `groups`, `transactions`) make its decisions; here is the rest: tasks, storage,
memory, sockets, rights. From the outside in:

    standalone    a broker by itself: storage, server, listener, opened and closed in order
    settings      all settings of a server, from a server.properties or words
    net           sockets, bytes, limits of a listener
    edge          Kafka's messages to plain ones and back; rights are checked here
    server        all parts put together, one table from request to handler
    records       topics, configs, produce, fetch: the APIs that need no group
    share         share groups and share-partitions
    groups        classic consumer groups and committed offsets;  transactions    producers and their transactions
    runtime       the base of coordinators and handlers;          security        logins and rights

Each imports only what is below it. A server is given its storage (`flowshare.log`, or a fleet's). A fleet's worker uses
`share` and `edge` over a storage of its own (`flowshare.fleet`).
"""
