"""The server end: share groups, topics and records over one storage. `server.py` puts the parts together."""
