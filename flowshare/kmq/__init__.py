"""KMQ's queue over a topic and a topic of markers (SoftwareMill), without I/O and without a clock.

- `markers`: the bytes of markers, and of the header that counts redeliveries.
- `tracker`: which messages of one partition are open, which of them are due, from where on markers are needed.
- `redelivery`: what becomes of a message that is due.
"""
