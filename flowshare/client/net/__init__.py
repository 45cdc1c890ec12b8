"""Connections: how a client reaches one broker or a cluster, proves who it is, and finds who leads what.

A connection says what is at its other end (`Connection.is_flowshare`) and whether it keeps time itself. `link` opens
one again when it ends; `tcp`, `requests` are one socket; `cluster`, `routing`, `topology` are several brokers
as one; `handshake`, `login`, `security` are versions, SASL and TLS. What the messages say is `client.wire`'s, what is
sent is decided elsewhere.
"""
