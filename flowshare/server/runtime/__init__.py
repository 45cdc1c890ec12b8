"""What the coordinators and handlers of the server stand on; nothing of it knows a group's rules.

`coordinator` keeps what a coordinator has in memory and watches what is due; `budget` bounds its bytes. `connection` is
a connection within the process, which a socket has, too. `waiting` is for requests that wait (Kafka's purgatory),
`turns` for long work that lets others run, `answers` for the memory of answers. `state` is how a share-partition's
state is stored, `topic_index` finds topics by id, `failures` makes error codes of exceptions.
"""
