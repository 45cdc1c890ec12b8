"""Classic consumer groups and the offsets they commit.

The rules are `flowshare.groups`. `coordinator` has all groups in memory and writes what they decide, `store` says where
that lies, `sweep` lets offsets expire, `members` and `offsets` answer the APIs. Share groups are `server.share`; a
group id belongs to one of the two kinds.
"""
