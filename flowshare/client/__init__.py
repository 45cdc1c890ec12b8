"""Clients of share groups and topics: members and consumers, producers, administration, and the connections under them.

    session    one member of a share group in ranges and bytes: what it fetches, acknowledges and holds
    consumer   `ShareConsumer`: records one by one over a member, with the rules of Kafka's KafkaShareConsumer
    producer   records into topics
    admin      `ShareAdmin`: topics, groups, offsets, settings
    net        connections: one broker, a cluster of them, logins and TLS
    wire       the client's half of the codecs

It talks Kafka's protocol in process, to Kafka's brokers and to flowshare's own servers; which of them it is, the
connection says. Handlers, retries and processes are the agents'; nothing here imports faust or the server.
"""
