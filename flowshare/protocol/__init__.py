"""Kafka's protocol, for both ends: what is said, and how it lies in bytes.

In it: the plain messages with the declaration of each API (`messages`, `declaration`, `translation`); Kafka's frames by
kio, and the check that makes foreign bytes safe for it (`kafka`, `walk`); codecs by hand of what is asked all the time
(`share_codec`); record batches (`batches`, `headers`, `decoding`, `compact`, `codecs`); error codes,
rights, SCRAM. Not in it: sockets, waiting, and what anything of it means to a group or a log.
"""
