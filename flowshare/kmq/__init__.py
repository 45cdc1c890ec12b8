"""KMQ's queue over a topic and a topic of markers (SoftwareMill), without I/O and without a clock.

- `markers`: the bytes of markers, and of the header that counts redeliveries.
- `tracker`: the open messages of one partition, the due ones among them, and the first marker that is still needed.
- `redelivery`: the copy that is sent of a due message.
"""
