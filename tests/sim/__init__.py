"""The machinery of all worlds: simulations that one seed decides.

A world holds its rules alone: the subject, the steps that may happen, the invariants that hold after each. Not here:
time of worlds with tasks, which is `flowshare.testing` (`run`, `ManualClock`), and faults of processes (`tests.chaos`).

seeds     which seeds a run plays, and how a world that fails names its own
clock     clocks of tests on a real loop
timeline  virtual time: events in the order of their due times, with a bound on the number of steps
faults    rates of faults, which the seed draws once for a world
mutants   known bugs that are planted, for the worlds and the other tests to catch
"""
