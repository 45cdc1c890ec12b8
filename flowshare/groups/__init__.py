"""Classic consumer groups and committed offsets: pure, no I/O, no clock; time comes in as an argument."""
