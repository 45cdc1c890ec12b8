"""The server's side of the wire: strangers' requests checked, and turned into the server's plain ones.

Here are: the peer and its rights (`base`), endpoints made from an API's declaration (`derived`), answers in kio's form
(`entities`), and the table of all (`table`). The parts beyond a declaration (rights, merging, paging, versions that
mean something else) are by family: versions and logins (`api_versions`, `sasl`), the cluster's layout (`metadata`),
`topics` and `configs`, `records`, `share` groups, consumer `groups`, `transactions`, `acls`, and flowshare's own calls
(`private`). Not here: sockets and frames (`server.net`), and the answers' contents: those are the server's, behind
`Peer.connection`.
"""
