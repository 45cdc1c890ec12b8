"""§9.10 End-to-end."""

from tests.scenarios.language import Left, Scenario

SCENARIOS = ()

LEFT = ()
