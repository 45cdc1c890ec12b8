"""Sockets: connections accepted and closed, bytes to frames, frames to calls, answers in order.

`listener` accepts and watches, `socket` is one connection, `requests` has its requests under way, `frames` cuts the
bytes; `limits` has the clients' limits and `memory_pool` shares out the memory of requests. The meaning of a request is
the business of `server.edge`; an embedded path whose only client is its own process has no listener.
"""
