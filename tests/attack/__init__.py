"""Attacks on a listener at a given address: bounded in count and time, and meant for the loopback only.

One module a kind. An attack is a coroutine `(host, port)` that returns what it saw; it asserts nothing.
"""
