"""§9.9 Persistence."""

from tests.scenarios.language import Scenario

SCENARIOS = (
    Scenario(id="P11", on="core", when="combine 100-110A1 + 105-108A1 => 100-110A1"),
    Scenario(id="P12", on="core", when="combine 100-110A1 + 111-115A1 => 100-115A1"),
    Scenario(id="P13", on="core", when="combine 100-110A3 + 100-115A1 => 100-110A3 111-115A1"),
    Scenario(id="P14", on="core", when="combine 100-115A1 + 105-110Q1 => 100-104A1 105-110Q1 111-115A1"),
    Scenario(
        id="P15",
        on="core",
        when="combine 111-120A1 + 111-113A2 114K1 115-119A2 => 111-113A2 114-114K1 115-119A2 120-120A1",
    ),
    Scenario(
        id="P16",
        on="core",
        when="combine 100-110A1 121-130A1 + 111-119K2 116-123K2 start=120 => 120-123K2 124-130A1",
    ),
    Scenario(id="P17", on="core", when="combine 90-99A1 100-110A1 + start=105 => 105-110A1"),
    Scenario(id="P18", on="core", when="combine 100-110A3 + 103-105A2 => 100-110A3"),
    Scenario(
        id="P19",
        on="core",
        when="""
            combine 100-110A2 + 100-110R2 => 100-110R2
            combine 100-110R2 + 100-110K2 => 100-110R2
        """,
    ),
    Scenario(id="P20", on="core", when="combine 100-110A1 121-130A1 + 111-120A1 => 100-130A1"),
)

LEFT = ()
