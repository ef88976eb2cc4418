"""What a part of the benchmark found: rows with a verdict, and series for the plots."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Row:
    """One number, what it has to be, and the numbers it was made of."""

    name: str
    value: float
    unit: str
    target: float | None
    is_upper: bool
    details: dict[str, float]

    @property
    def is_met(self) -> bool:
        if self.target is None:
            return True
        return self.value <= self.target if self.is_upper else self.value >= self.target

    def __str__(self) -> str:
        details = "".join(f"   {name} {value:.3g}" for name, value in self.details.items())
        if self.target is None:
            verdict, bound = "", ""
        else:
            verdict, bound = (
                "ok" if self.is_met else "MISS",
                f"{'<=' if self.is_upper else '>='} {self.target}",
            )
        return f"{verdict:<4}  {self.name:<52} {self.value:8.3f} {self.unit:<7} {bound}{details}"


@dataclass(slots=True)
class Section:
    """Grows as it is measured; each row is printed at once."""

    name: str
    rows: list[Row] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)

    def at_least(
        self, name: str, value: float, target: float, unit: str, details: Mapping[str, float] = _NOTHING
    ) -> None:
        self._add(Row(name, value, unit, target, False, dict(details)))

    def at_most(
        self, name: str, value: float, target: float, unit: str, details: Mapping[str, float] = _NOTHING
    ) -> None:
        self._add(Row(name, value, unit, target, True, dict(details)))

    def report(self, name: str, value: float, unit: str, details: Mapping[str, float] = _NOTHING) -> None:
        """A number that nothing is asked of."""
        self._add(Row(name, value, unit, None, False, dict(details)))

    @property
    def is_met(self) -> bool:
        return all(row.is_met for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "is_met": row.is_met} for row in self.rows]
        return {"rows": rows, "series": self.series}

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(row, flush=True)


async def repeat(rounds: int, *measures: Callable[[], Awaitable[float]]) -> list[float]:
    """Medians of measures that take turns."""
    results = [[await measure() for measure in measures] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*results, strict=True)]
