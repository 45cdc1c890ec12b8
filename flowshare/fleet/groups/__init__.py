"""Share groups over several workers: the part that one worker coordinates and leads, and its questions to the others.

`duties` tells which groups and share-partitions are this worker's. For the rest there are the leaders of
share-partitions (`leaders`), facts of groups that others coordinate (`facts`), parts of a group's limit (`limits`),
settings of groups (`configs`) and of the whole fleet (`settings`), locations (`metadata`), and the owner of a group
among several fleets (`other_fleets`). `calls` answers other workers' calls. `flowshare.fleet.peers` carries the calls.
"""
