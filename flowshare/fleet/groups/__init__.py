"""Share groups over several workers: what one worker coordinates and leads, and what it asks the others.

`duties` says what is this worker's. For the rest there are the leaders of share-partitions (`leaders`), facts of groups
that others coordinate (`facts`), parts of a group's limit (`limits`), settings of groups (`configs`) and of the whole
fleet (`settings`), where things are (`metadata`), and whose a group is when there are more fleets (`other_fleets`).
`calls` answers what other workers ask. How a call gets there is `flowshare.fleet.peers`.
"""
