"""Choose settings that need less memory, in the order of the smallest loss. Settings in, settings out.

A context size that was not requested shrinks first; a requested one shrinks last. Knows no sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from corral.core.settings import EngineSettings

_STEP = 256  # contexts are multiples of it, in tokens
_SMALL = "q8_0"
_LARGE = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Scope:
    """What can be chosen for a model."""

    n_ctx: int  # of all slots together, as the settings say
    n_layers: int = 0  # that can be offloaded to GPUs
    has_cache: bool = True  # whether the model has a KV cache, one cell per token
    can_quantize: bool = True  # whether the cache can be quantized
    is_flash: bool = False  # whether flash attention is already used


@dataclass(frozen=True, slots=True)
class Attempt:
    """Settings as a function of a number, which should be as large as possible."""

    make: Callable[[int], EngineSettings]
    low: int
    high: int

    def largest(self, fits: Callable[[EngineSettings], bool]) -> EngineSettings | None:
        """Find the largest number that fits, by bisection; None if not even the smallest fits."""
        low, high = self.low, self.high
        if low > high or not fits(self.make(low)):
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if fits(self.make(middle)):
                low = middle
            else:
                high = middle - 1
        return self.make(low)


def attempts(settings: EngineSettings, scope: Scope) -> Iterator[Attempt]:
    first, *others = _variants(settings, scope)
    if settings.n_ctx:
        yield from (_fixed(variant) for variant in others)
        yield from (_fewer_slots(variant, scope) for variant in (first, *others))
        yield _fewer_layers(first, scope)
    for variant in (first, *others):
        yield _fixed(variant)
        yield _smaller_context(variant, scope)
    if not settings.n_ctx:
        yield from (_fewer_slots(variant, scope) for variant in (first, *others))
        yield _fewer_layers(_with_least_context(first, scope), scope)
    smallest = others[-1] if others else first
    yield _smaller_context(_one_slot(smallest, scope), scope)
    yield _fewer_layers(least(settings, scope), scope)


def least(settings: EngineSettings, scope: Scope) -> EngineSettings:
    """Return the smallest settings that are ever chosen."""
    *_, smallest = _variants(settings, scope)
    return _with_least_context(_one_slot(smallest, scope), scope)


def options(before: EngineSettings, after: EngineSettings) -> tuple[str, ...]:
    """Return the command-line options that lead from one to the other."""
    pairs = (
        ("-c", before.n_ctx, after.n_ctx),
        ("-np", before.n_parallel, after.n_parallel),
        ("-fa", before.flash_attn, after.flash_attn),
        ("-ctk", before.cache_type_k, after.cache_type_k),
        ("-ctv", before.cache_type_v, after.cache_type_v),
        ("-ngl", before.n_gpu_layers, after.n_gpu_layers),
    )
    return tuple(f"{name} {value}" for name, old, value in pairs if value != old)


def _variants(settings: EngineSettings, scope: Scope) -> Iterator[EngineSettings]:
    """Yield the settings with less and less memory per token."""
    yield settings
    if settings.flash_attn == "off" or not scope.has_cache:
        return
    if not scope.is_flash:
        yield replace(settings, flash_attn="on")
    if scope.can_quantize and {settings.cache_type_k, settings.cache_type_v} & set(_LARGE):
        yield replace(settings, cache_type_k=_SMALL, cache_type_v=_SMALL)


def _fixed(settings: EngineSettings) -> Attempt:
    return Attempt(lambda _: settings, 0, 0)


def _smaller_context(settings: EngineSettings, scope: Scope) -> Attempt:
    step = _STEP * _n_streams(settings)
    low = -(-_least_context(settings, scope) // step)
    high = (_total(settings, scope) - 1) // step if scope.has_cache else 0
    return Attempt(lambda n: replace(settings, n_ctx=n * step), low, high)


def _fewer_slots(settings: EngineSettings, scope: Scope) -> Attempt:
    """Use fewer slots, each with its present context, or the smallest if no context size was requested."""
    total = _total(settings, scope) if settings.n_ctx else _least_context(settings, scope)
    each = total // _n_streams(settings)

    def make(n: int) -> EngineSettings:
        n_ctx = settings.n_ctx if settings.kv_unified or not scope.has_cache else n * each
        return replace(settings, n_parallel=n, n_ctx=n_ctx)

    return Attempt(make, 1, settings.n_parallel - 1)


def _fewer_layers(settings: EngineSettings, scope: Scope) -> Attempt:
    n = settings.n_gpu_layers
    n_now = scope.n_layers if n < 0 else min(n, scope.n_layers)
    return Attempt(lambda n: replace(settings, n_gpu_layers=n), 0, n_now - 1)


def _one_slot(settings: EngineSettings, scope: Scope) -> EngineSettings:
    return replace(settings, n_parallel=1, n_ctx=_total(settings, scope) // _n_streams(settings))


def _with_least_context(settings: EngineSettings, scope: Scope) -> EngineSettings:
    if not scope.has_cache:
        return settings
    return replace(settings, n_ctx=_least_context(settings, scope))


def _least_context(settings: EngineSettings, scope: Scope) -> int:
    return min(_total(settings, scope), settings.fit_ctx * _n_streams(settings))


def _total(settings: EngineSettings, scope: Scope) -> int:
    return settings.n_ctx or scope.n_ctx


def _n_streams(settings: EngineSettings) -> int:
    """Return the number of contexts: slots share one if it is unified."""
    return 1 if settings.kv_unified else settings.n_parallel
