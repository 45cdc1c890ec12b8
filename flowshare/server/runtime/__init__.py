"""The common base of the server's coordinators and handlers; nothing here knows a group's rules.

`coordinator` keeps a coordinator's things in memory and does due work; `budget` bounds their bytes. `connection` is a
connection within the process, which a socket has, too. `waiting` is for requests that wait (Kafka's purgatory),
`parked_settles` for settles that wait for the records before theirs, `turns` for long work that lets others run,
`answers` for the memory of answers. `state` has the stored form of a share-partition's state, `topic_index` finds
topics by id, `failures` turns exceptions into error codes.
"""
