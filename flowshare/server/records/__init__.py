"""Topics and records without groups: metadata, topics and their configs, produce, fetch, offsets by time.

The log itself is `flowshare.log`. Here are the handlers, the fetch that waits for records, and the quota of partitions
that a client makes. Records that a share group hands out go through `server.share`.
"""
