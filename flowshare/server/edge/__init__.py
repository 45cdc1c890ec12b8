"""The server's side of the wire: what strangers may ask, and how their requests become the server's plain ones.

In it: who is at the other end and what they may do (`base`), endpoints made from an API's declaration (`derived`),
answers in kio's form (`forms`), and the table of all (`table`). What the declaration cannot say (rights, merging,
paging, versions that mean something else) is by family: who one is (`api_versions`, `sasl`), where things are
(`metadata`), `topics` and `configs`, `records`, `share` groups, consumer `groups`, `transactions`, `acls`, and
flowshare's own calls (`private`). Not in it: sockets and frames (`server.net`), and what is
answered: that is the server's, behind `Peer.connection`.
"""
