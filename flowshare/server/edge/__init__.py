"""The server's side of the wire: one module a family of APIs; see `base`."""
