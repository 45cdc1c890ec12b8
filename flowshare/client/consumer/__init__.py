"""`ShareConsumer`: hands out records one by one, for applications that poll; made for one task.

`consumer` stands on a `ShareMember` and adds what is per record: those fetched and not handed out yet (`backlog`),
those handed out and what was said of them (`inflight`), commits and their callback (`commits`), accepts that are
written with outputs (`settles`), waking up. Fetching and acknowledging themselves are `client.session`'s; pools,
retries and dead letters are the agents'.
"""
