"""Decide which models make room for another one. Numbers in, names out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from corral.core.errors import InsufficientStorage
from corral.memory.plan import HOST

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that holds memory, or is about to."""

    name: str
    needs: Mapping[str, int]  # bytes by device
    used_at: float
    is_busy: bool = False
    is_pinned: bool = False
    is_rival: bool = False  # of a group of the new one


@dataclass(frozen=True, slots=True)
class Budget:
    """What all models together may use. Devices without a limit are not counted."""

    limits: Mapping[str, int]
    n_models: int = 0  # 0: any number

    def holds(self, needs: Iterable[Mapping[str, int]]) -> bool:
        every = list(needs)
        if self.n_models and len(every) > self.n_models:
            return False
        return all(
            sum(each.get(device, 0) for each in every) <= limit for device, limit in self.limits.items()
        )


def plan_room(
    needs: Mapping[str, int], residents: Sequence[Resident], budget: Budget, also_busy: bool = False
) -> list[str] | None:
    """Return the models to unload, the least recently used first; None: it must wait for busy ones.

    `also_busy`: plan as if these were idle. Rivals always go.
    """
    rivals = [each for each in residents if each.is_rival]
    if not also_busy and any(each.is_busy for each in rivals):
        return None
    others = [each for each in residents if not each.is_rival]
    kept = {each.name: each.needs for each in others}
    idle = [each for each in others if not each.is_pinned and (also_busy or not each.is_busy)]
    victims = [each.name for each in rivals]
    for each in sorted(idle, key=lambda each: each.used_at):
        if budget.holds([needs, *kept.values()]):
            break
        victims.append(each.name)
        del kept[each.name]
    if not budget.holds([needs, *kept.values()]):
        return None
    for each in sorted(idle, key=lambda each: -each.used_at):  # what need not go after all
        if each.name in victims and budget.holds([needs, *kept.values(), each.needs]):
            victims.remove(each.name)
            kept[each.name] = each.needs
    return victims


def check_possible(name: str, needs: Mapping[str, int], pinned: Sequence[Resident], budget: Budget) -> None:
    """Raise with the numbers if the model cannot be loaded even when all others but the pinned are gone."""
    held = [each.needs for each in pinned]
    if budget.n_models and len(held) + 1 > budget.n_models:
        names = ", ".join(each.name for each in pinned)
        raise InsufficientStorage(f"model '{name}' cannot be loaded: --models-max is used up by {names}")
    for device, limit in budget.limits.items():
        need, taken = needs.get(device, 0), sum(each.get(device, 0) for each in held)
        if need + taken > limit:
            where = "memory" if device == HOST else device
            pins = f", of which pinned models hold {_mib(taken)}" if taken else ""
            raise InsufficientStorage(
                f"model '{name}' does not fit: it needs {_mib(need)} of {where}, the limit for all models is "
                f"{_mib(limit)}{pins}",
                n_needed=need,
                n_limit=limit,
            )


def _mib(n_bytes: int) -> str:
    return f"{-(-n_bytes // _MIB)} MiB"
