"""Transactions of producers, without I/O: who writes what, what is open, what was aborted (KIP-98, KIP-360)."""
