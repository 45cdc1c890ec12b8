"""KMQ's shells on the client's side: what its topics must be, and the tracker, which sends again what is due."""
