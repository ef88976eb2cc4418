"""A case: a server, what its model answers, and requests. Data only; `play.py` plays it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Model:
    """What the fake model is and does. Its tokens are characters."""

    says: str = "Hello."
    instead: str = ""  # goes on so once a character of `says` is taken back
    breaks_after: int = -1  # characters: the engine fails there
    template: str = "qwen3"  # of tests/tools/templates
    pooling: str = ""
    labels: tuple[str, ...] = ()
    n_slots: int = 4
    is_ready: bool = True  # else it loads for ever
    is_loaded: bool = True  # where there are many, else the first request loads it


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. `$name` in its path or body stands for what `keeps` found in an answer before."""

    method: str
    path: str
    body: Any = None  # bytes are sent as they are, all else as JSON
    headers: dict[str, str] = field(default_factory=dict)
    key: str = "admin"  # whose key is sent to a server with keys; "": none
    keeps: dict[str, str] = field(
        default_factory=dict
    )  # a name, and the path to its value: {"id": "data.0.id"}
    until: str = ""  # asks again until this is in the answer
    is_outside: bool = False  # of the prefix of a server that has one
    is_long: bool = False  # of its answer, only the type is recorded
    n_events: int = 0  # leaves the stream after so many parts; 0: at its end


@dataclass(frozen=True, slots=True)
class Begin:
    """A request that runs beside the following ones; its answer is recorded at the end. Until then the engine
    takes only so many steps."""

    ask: Ask
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Sleep:
    """The engine of the first model falls asleep, fails or restarts: the state is set."""

    state: str


Act = Ask | Begin | Sleep

# Every case is played on servers of these kinds. What differs between them is recorded separately.
ONE, MANY, ONE_SEALED, MANY_SEALED = "one", "many", "one sealed", "many sealed"
SETUPS = (ONE, MANY, ONE_SEALED, MANY_SEALED)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    acts: tuple[Act, ...]
    model: Model = Model()
    options: dict[str, Any] = field(default_factory=dict)  # of the server; `$dir`: an empty directory
    setups: tuple[str, ...] = SETUPS
    environ: dict[str, str] = field(default_factory=dict)
