"""Decide whether an engine fits into the machine's memory, and if not, which settings would.

Pure arithmetic: sizes come from a `Measure`, also for other settings. No native code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from corral.core.errors import CorralError
from corral.core.settings import EngineSettings
from corral.memory.choice import Scope, attempts, least, options

HOST = "CPU"
HOST_MARGIN = 256 << 20  # for other memory of the processes
ADDRESS_MARGIN = 512 << 20  # for stacks and arenas, which are reserved but hardly used
_MAX_TOLD = 4
_MIB, _GIB = 1 << 20, 1 << 30

Bytes: TypeAlias = Mapping[str, int]  # by device, including the host


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that settings need. `n_reserved`: address space without memory, of mapped weights that are used
    as copies. `n_mapped`: of the weights on the host, what several engines have only once."""

    weights: Bytes
    cache: Bytes = field(default_factory=dict)
    compute: Bytes = field(default_factory=dict)
    n_reserved: int = 0
    n_mapped: int = 0

    def at(self, device: str) -> int:
        return sum(part.get(device, 0) for part in (self.weights, self.cache, self.compute))

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys([HOST, *self.weights, *self.cache, *self.compute]))

    def grown(self, since: Need, times: float) -> Need:
        """Extrapolate: add `times` the growth since an earlier need."""

        def go_on(new: Bytes, old: Bytes) -> Bytes:
            return {device: n + round(times * max(0, n - old.get(device, 0))) for device, n in new.items()}

        return Need(
            go_on(self.weights, since.weights),
            go_on(self.cache, since.cache),
            go_on(self.compute, since.compute),
            self.n_reserved,
            self.n_mapped,
        )

    def of_engines(self, n: int, n_on_device: int) -> Need:
        """Return what `n` engines need together, of which some share the devices of the first one."""

        def times(part: Bytes) -> Bytes:
            return {device: k * (n if device == HOST else n_on_device) for device, k in part.items()}

        weights = Counter(times(self.weights)) - Counter({HOST: (n - 1) * self.n_mapped})
        return Need(weights, times(self.cache), times(self.compute), self.n_reserved, self.n_mapped)

    def __add__(self, other: Need) -> Need:
        return Need(
            _sum(self.weights, other.weights),
            _sum(self.cache, other.cache),
            _sum(self.compute, other.compute),
            self.n_reserved + other.n_reserved,
            self.n_mapped + other.n_mapped,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Free bytes. Unknown numbers are None or missing, and are not checked."""

    host_bytes: int | None
    devices: Bytes = field(default_factory=dict)
    address_bytes: int | None = None

    def free(self, device: str) -> int | None:
        return self.host_bytes if device == HOST else self.devices.get(device)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an engine starts with. `chosen`: the options that make it fit, if they were needed."""

    settings: EngineSettings
    need: Need
    machine: Machine
    chosen: str = ""

    def describe(self) -> str:
        """Return a line for the log."""
        free = [] if self.machine.host_bytes is None else [f"{_size(self.machine.host_bytes)} free"]
        free += [f"{_size(n)} free on {device}" for device, n in self.machine.devices.items()]
        return "; ".join([_parts(self.need, self.need.devices), *free])


Measure: TypeAlias = Callable[[EngineSettings], Need]


class _Shortage(NamedTuple):
    where: str
    need: str
    n_needed: int
    n_free: int


def plan_memory(settings: EngineSettings, scope: Scope, machine: Machine, measure: Measure) -> Plan:
    """Return the settings if they fit, otherwise what `--fit on` chooses. Raises if nothing fits."""
    need = measure(settings)
    is_choosing = settings.fit == "on"
    margin = settings.fit_target_mib * _MIB if is_choosing else 0
    shortages = list(_shortages(need, machine, margin))
    if not shortages:
        return Plan(settings, need, machine)
    told: list[str] = []
    for plan in find_fitting(settings, scope, machine, measure):
        if is_choosing:
            return plan
        told.append(plan.chosen)
        if len(told) == _MAX_TOLD:
            break
    smallest = least(settings, scope)
    advice = _advice(told) if told else _regret(measure(smallest), " ".join(options(settings, smallest)))
    raise CorralError("\n".join(["the model does not fit into memory:", *map(_told, shortages), *advice]))


def find_fitting(
    settings: EngineSettings, scope: Scope, machine: Machine, measure: Measure
) -> Iterator[Plan]:
    """Yield plans that fit, the smallest loss first."""
    needs: dict[tuple[str, ...], Need] = {}
    margin = settings.fit_target_mib * _MIB

    def fits(candidate: EngineSettings) -> bool:
        need = needs[options(settings, candidate)] = measure(candidate)
        return not any(_shortages(need, machine, margin))

    told: list[set[str]] = []
    for attempt in attempts(settings, scope):
        found = attempt.largest(fits)
        words = options(settings, found) if found is not None else ()
        if found is not None and not any(fewer <= set(words) for fewer in told):
            told.append(set(words))
            yield Plan(found, needs[words], machine, " ".join(words))


def _shortages(need: Need, machine: Machine, device_margin: int) -> Iterator[_Shortage]:
    for device in need.devices:
        free = machine.free(device)
        margin = HOST_MARGIN if device == HOST else device_margin
        if free is not None and need.at(device) + margin > free:
            where = "memory" if device == HOST else device
            yield _Shortage(where, _parts(need, [device]), need.at(device) + margin, free)
    n_addresses = need.at(HOST) + need.n_reserved + ADDRESS_MARGIN
    if machine.address_bytes is not None and n_addresses > machine.address_bytes:
        yield _Shortage("ulimit -v", _parts(need, [HOST]), n_addresses, machine.address_bytes)


def _told(shortage: _Shortage) -> str:
    needed, free = _size(shortage.n_needed), _size(shortage.n_free)
    return f"  {shortage.where}: {shortage.need}; with a reserve, {needed} are needed and {free} free"


def _advice(told: Sequence[str]) -> list[str]:
    first = "the first of these" if len(told) > 1 else "this"
    return [
        "these settings would fit:",
        *(f"  {text}" for text in told),
        f"--fit on uses {first}; --fit off tries to load it anyway",
    ]


def _regret(smallest: Need, how: str) -> list[str]:
    total = HOST_MARGIN + sum(smallest.at(device) for device in smallest.devices)
    with_what = f" with {how}" if how else ""
    return [
        f"no settings would fit: at least {_size(total)} are needed{with_what}",
        "use a smaller model, or one with a smaller quantization; --fit off tries to load it anyway",
    ]


def _parts(need: Need, devices: Sequence[str]) -> str:
    named = {"weights": need.weights, "KV cache": need.cache, "compute": need.compute}
    sizes = {name: sum(part.get(device, 0) for device in devices) for name, part in named.items()}
    return ", ".join(f"{_size(n)} {name}" for name, n in sizes.items())


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:.1f} GiB" if n_bytes >= _GIB else f"{n_bytes / _MIB:.0f} MiB"


def _sum(a: Bytes, b: Bytes) -> Bytes:
    return dict(Counter(a) + Counter(b))
