"""A reason in words, and the values in it, so that a page can say it in another language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """`code`: names the reason for programs and translations. `values`: milliseconds, counts and shares."""

    code: str
    text: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value, and how it reads in a sentence."""

    value: Any
    text: str

    def __str__(self) -> str:
        return self.text


def say(texts: Mapping[str, str], code: str, **values: Quantity | int | str) -> Reason:
    """Return the reason of a code: its text with these values."""
    shown = {name: each.value if isinstance(each, Quantity) else each for name, each in values.items()}
    return Reason(code, texts[code].format(**values), shown)


def number(n: int, noun: str = "") -> Quantity:
    return Quantity(n, f"{n:,}" if not noun else f"{n:,} {noun}{'' if n == 1 else 's'}")


def seconds(s: float) -> Quantity:
    return Quantity(round(s * 1e3, 2), _duration(s))


def share(part: float, whole: float) -> Quantity:
    found = part / whole if whole else 0.0
    return Quantity(round(found, 4), f"{100 * found:.0f} %")


def _duration(s: float) -> str:
    if s < 0.01:
        return f"{s * 1e3:.1f} ms"
    if s < 1:
        return f"{s * 1e3:.0f} ms"
    return f"{s:.2f} s" if s < 10 else f"{s:,.1f} s"
