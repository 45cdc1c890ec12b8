"""Sockets: connections accepted and closed, bytes to frames, frames to calls, answers in order.

`listener` accepts and watches, `socket` is one connection, `requests` what is under way on it, `frames` cuts the bytes;
`limits` says what clients are allowed and `memory_pool` shares out what their requests take. What a request means is
the business of `server.edge`; an embedded path whose only client is its own process has no listener.
"""
