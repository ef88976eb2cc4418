"""The loads of all engines as columns: a placement among a thousand engines is a few operations on arrays.

`LoadTable` decides as `placement` defines it. A row changes when its engine does, not with every task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from corral.fleet.placement import (
    CLOSE,
    CROWD,
    SERVICE_MS,
    TOKEN_MS,
    WORK,
    EngineCost,
    EngineLoad,
    TaskDemand,
)

Mask = npt.NDArray[np.bool_]
_NO_LOAD = EngineLoad(1)
_NUMBERS = (
    "n_slots",
    "n_running",
    "n_waiting",
    "n_ahead",
    "n_held",
    "token_ms",
    "service_ms",
)  # of an EngineLoad


class LoadTable:
    """Mutable: a row for each engine."""

    def __init__(self, n_engines: int) -> None:
        self._columns = {name: np.full(n_engines, float(getattr(_NO_LOAD, name))) for name in _NUMBERS}
        self._fingerprints: dict[str, int] = {}  # numbered, because costs belong to them
        self._kinds = np.zeros(n_engines, np.intp)
        self.is_open: Mask = np.zeros(n_engines, np.bool_)

    def put(self, index: int, load: EngineLoad, fingerprint: str = "") -> None:
        self._kinds[index] = self._fingerprints.setdefault(fingerprint, len(self._fingerprints))
        for name, column in self._columns.items():
            column[index] = getattr(load, name)

    def set_costs(self, cost_of: Callable[[str], EngineCost]) -> None:
        """Note what answers take now, which changes for all engines that compute alike."""
        costs = [cost_of(fingerprint) for fingerprint in self._fingerprints]
        if costs:
            self._columns["token_ms"] = np.array([each.token_ms or TOKEN_MS for each in costs])[self._kinds]
            self._columns["service_ms"] = np.array([c.service_ms or SERVICE_MS for c in costs])[self._kinds]

    def only(self, indexes: Sequence[int]) -> Mask:
        mask = np.zeros(len(self.is_open), np.bool_)
        mask[list(indexes)] = True
        return mask

    def place(self, demand: TaskDemand, among: Mask) -> tuple[int, int]:
        """Return the engine for a task, and the one that would be soonest, of some that there are."""
        cached = self._column(demand.cached)
        estimates = np.where(among, self._estimate(demand, cached), np.inf)
        soonest = int(estimates.argmin())
        close = np.flatnonzero(estimates <= estimates[soonest] * (1 + CLOSE))
        close = _least(close, -cached)
        if demand.last in close:
            return demand.last, soonest
        close = _least(close, self._n_tasks)
        return int(_least(close, self._columns["n_held"])[0]), soonest

    def plan_transfer(self) -> tuple[int, int] | None:
        """Return an open engine with waiting tasks and one with a free slot, if there are both."""
        n_free, is_waiting = self._columns["n_slots"] - self._n_tasks, self._columns["n_waiting"] > 0
        full = np.flatnonzero(self.is_open & is_waiting & (n_free < 0))
        free = np.flatnonzero(self.is_open & ~is_waiting & (n_free > 0))
        if not len(full) or not len(free):
            return None
        return int(_least(full, n_free)[0]), int(_least(free, -n_free)[0])

    @property
    def _n_tasks(self) -> npt.NDArray[np.float64]:
        n_tasks: npt.NDArray[np.float64] = self._columns["n_running"] + self._columns["n_waiting"]
        return n_tasks

    def _column(self, values: Mapping[int, int]) -> npt.NDArray[np.float64]:
        column = np.zeros(len(self.is_open))
        if values:
            column[list(values)] = list(values.values())
        return column

    def _estimate(self, demand: TaskDemand, cached: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return what `placement.estimate_ms` returns for each engine, to the bit."""
        n_slots, n_tasks = self._columns["n_slots"], self._n_tasks
        token_ms, service_ms = self._columns["token_ms"], self._columns["service_ms"]
        n_left = np.maximum(1, demand.n_prompt - cached)
        n_before = np.maximum(0, 1 - (n_slots - n_tasks))
        crowd = np.minimum(n_tasks, n_slots) / n_slots
        estimate: npt.NDArray[np.float64] = (
            (WORK * n_left + self._columns["n_ahead"]) * token_ms
            + n_before * service_ms / n_slots
            + CROWD * crowd * service_ms
        )
        return estimate


def _least(indexes: npt.NDArray[np.intp], column: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Return those with the least value, in ascending order."""
    values = column[indexes]
    least: npt.NDArray[np.intp] = indexes[values == values.min()]
    return least
