"""Consumer groups, share groups, cooperative groups and KMQ on the same records, in turns (`make bench-modes`).

arms        what is compared: which mode, where, and what it promises
members     the processes that handle records: a forked one of Python's, a JVM
work        what a handler does with a record;  journal: what it noted, in a file that survives its process
places      a Kafka, and embedded paths: topics, senders, the bytes that acknowledgements took
trial       one arm at work on one topic
workloads   what is measured of a trial
judge       whether it counts; statistics
table       what is printed and written;  run: the turns
"""
