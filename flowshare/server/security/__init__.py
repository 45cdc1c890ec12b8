"""The login of a socket's peer, and the peer's rights.

`tls`, `sasl`, `credentials`, `users` and `users_file` are logins, `guesses` slows down guessing of passwords; `acls`
has the rules, `acl_file` and `acl_store` keep them. The words of rights are `protocol.rights`; `server.edge` checks
rights. Workers of a fleet log in to each other by `fleet.peer_login`, processes on one path by `backend.path_login`.
"""
