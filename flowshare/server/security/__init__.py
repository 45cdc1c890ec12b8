"""Who is at the other end of a socket, and what they may do.

`tls`, `sasl`, `credentials`, `users` and `users_file` are logins, `guesses` slows down who guesses passwords; `acls`
has the rules, `acl_file` and `acl_store` keep them. The words of rights are `protocol.rights`, and they are asked for
in `server.edge`. How a fleet's workers know each other is `fleet.peer_login`, how processes on one path do
`backend.path_login`.
"""
