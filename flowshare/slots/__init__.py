"""The core of slots: who leads what, what lies in a slot's log, and what makes a write count. No I/O, no clock."""
