"""The console: its parts by themselves, its pages on a log in memory, and who attacks it.

`world.Console` is the real server with everything behind it, on loopback.
"""
