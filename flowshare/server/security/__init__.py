"""Who is at the other end of a socket (TLS, SASL) and what they may do (ACLs); `docs/security.md` is its page."""
