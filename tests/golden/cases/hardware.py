"""What the server uses of its machine: numbers of this moment, so only the type of the answer is recorded."""

from __future__ import annotations

from tests.golden.case import Ask, Case

CASES = [
    Case(
        "hardware",
        (
            Ask("GET", "/monitor/hardware", is_long=True),
            Ask("GET", "/monitor/hardware", key="user", is_long=True),
            Ask("GET", "/monitor/hardware", key="", is_long=True),
            Ask("POST", "/monitor/hardware"),
        ),
    )
]
