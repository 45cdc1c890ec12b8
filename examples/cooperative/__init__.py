"""A cooperative agent: more workers than partitions, and each customer with one worker at a time."""
