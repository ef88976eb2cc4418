"""Find the fastest settings of a model on this machine by benchmarks, one setting after the other.

Encoding, threads and batch size are chosen, since they keep the answers. Flash attention and cache types
change them, even if only in the last bits: these are only reported.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import psutil

from corral.core.errors import CorralError
from corral.core.settings import EngineSettings
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.model_file import main_type
from corral.llama import device
from corral.llama.hardware import physical_cores, uses_flash_attn
from corral.llama.model import Model
from corral.tuning.benchmark import Benchmark, interleave
from corral.tuning.candidate import Candidate, choose, try_encodings
from corral.tuning.comparison import Comparison
from corral.tuning.encoding import KEEPING, Report, with_profile
from corral.tuning.profile import Speed, TuningProfile, content_hash, lock_model, write_profile

_BATCHES = (128, 256, 512, 1024)
_N_PROMPT = 1024  # enough to distinguish batch sizes
_LEAST_GAIN = 1.03  # with less, the default stays
_WIDE = ("f32", "f16", "bf16")
_QUANTIZED = (
    "cache of q8_0, flash attention",
    "-ctk q8_0 -ctv q8_0",
    {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
)


class Measurement(msgspec.Struct, frozen=True):
    """One measured setting."""

    what: str
    speed: Speed
    is_chosen: bool = False
    note: str = ""


OnMeasurement = Callable[[Measurement], None]


def tune(settings: EngineSettings, report: Report, on_measurement: OnMeasurement) -> TuningProfile:
    """Measure, and store the profile."""
    device.start(settings)
    hash = content_hash(settings.model)
    with lock_model(hash):
        profile = _tune_encoding(settings, hash, report, on_measurement)
        settings = with_profile(settings, hash, profile)
        with contextlib.closing(Model.load(settings)) as model:
            profile = _tune_threads(settings, model, profile, report, on_measurement)
            settings = msgspec.structs.replace(
                settings, n_threads=profile.n_threads, n_threads_batch=profile.n_threads_batch
            )
            profile = _tune_batch(settings, model, profile, report, on_measurement)
            _show_others(settings, model, report, on_measurement)
        write_profile(hash, profile)
    return profile


def _tune_encoding(
    settings: EngineSettings, hash: str, report: Report, on_measurement: OnMeasurement
) -> TuningProfile:
    kind = GGML_TYPES[main_type(settings.model)].name
    names = [KEEPING, *(name.upper() for name in _WIDE[1:] if kind in _WIDE)]
    encodings = [name for name in names if name != kind.upper()]
    speed, candidates = try_encodings(settings, hash, encodings, report)
    profile = choose(candidates)
    on_measurement(Measurement(f"{kind.upper()}, as it is", speed, not profile.encoding))
    for candidate in candidates:
        is_chosen = candidate.encoding == profile.encoding
        on_measurement(Measurement(candidate.encoding, candidate.speed, is_chosen, _verdict(candidate)))
    return profile


def _verdict(candidate: Candidate) -> str:
    if candidate.comparison is None:
        return f"not compared: {candidate.fault}" if candidate.fault else "not faster"
    refusal = f": differs too much; --transcode {candidate.encoding} uses it anyway"
    return _distances(candidate.comparison) + ("" if candidate.is_better else refusal)


def _distances(found: Comparison) -> str:
    """Format the distances from the reference: of the file as it is, then of the candidate."""
    a, b = found.a, found.b
    distances = f"KL {a.mean_kl:.5f} and {b.mean_kl:.5f}, top-1 {a.top1:.2%} and {b.top1:.2%}"
    return f"from {found.reference}: {distances}"


def _tune_threads(
    settings: EngineSettings,
    model: Model,
    profile: TuningProfile,
    report: Report,
    on_measurement: OnMeasurement,
) -> TuningProfile:
    counts = thread_candidates(physical_cores(), psutil.cpu_count() or 1)
    with contextlib.closing(Benchmark(model, settings)) as benchmark:

        def run(n: int) -> Speed:
            benchmark.use_threads(n, n)
            return benchmark.measure()

        speeds = interleave([partial(run, n) for n in counts], partial(report, "timing threads"))
    usual = counts.index(physical_cores())
    prompt = _best([speed.prompt for speed in speeds], usual)
    stream = _best([math.sqrt(speed.one * speed.four) for speed in speeds], usual)
    for i, (n, speed) in enumerate(zip(counts, speeds, strict=True)):
        roles = [name for name, best in (("answers", stream), ("prompts", prompt)) if best == i]
        note = f"for {' and '.join(roles)}" if roles else ""
        on_measurement(Measurement(f"{n} thread{'s' * (n > 1)}", speed, bool(roles), note))
    return msgspec.structs.replace(profile, n_threads=counts[stream], n_threads_batch=counts[prompt])


def thread_candidates(n_cores: int, n_logical: int) -> list[int]:
    """Return thread counts worth measuring: fewer leave a core to the rest of the server, more rarely
    help."""
    few = range(1, n_cores + 1) if n_cores <= 4 else (n_cores // 2, n_cores - 1, n_cores)
    return sorted({*few, n_logical} if n_logical <= 2 * n_cores else {*few})


def _tune_batch(
    settings: EngineSettings,
    model: Model,
    profile: TuningProfile,
    report: Report,
    on_measurement: OnMeasurement,
) -> TuningProfile:
    sizes = [n for n in _BATCHES if n <= settings.n_batch]
    with contextlib.ExitStack() as stack:
        runs = []
        for n in sizes:
            variant = msgspec.structs.replace(settings, n_ubatch=n)
            benchmark = stack.enter_context(contextlib.closing(Benchmark(model, variant, _N_PROMPT)))
            runs.append(partial(benchmark.measure, streams=False))
        speeds = interleave(runs, partial(report, "timing batch sizes"))
    usual = sizes.index(settings.n_ubatch) if settings.n_ubatch in sizes else 0
    best = _best([speed.prompt for speed in speeds], usual)
    for i, (n, speed) in enumerate(zip(sizes, speeds, strict=True)):
        on_measurement(Measurement(f"-ub {n}", speed, i == best))
    return msgspec.structs.replace(profile, n_ubatch=sizes[best])


def _show_others(
    settings: EngineSettings, model: Model, report: Report, on_measurement: OnMeasurement
) -> None:
    flash = "off" if uses_flash_attn(settings) else "on"
    for what, option, changes in (
        (f"flash attention {flash}", f"-fa {flash}", {"flash_attn": flash}),
        _QUANTIZED,
    ):
        variant = msgspec.structs.replace(settings, **changes)
        try:
            with (
                contextlib.closing(Benchmark(model, settings)) as plain,
                contextlib.closing(Benchmark(model, variant)) as other,
            ):
                before, after = interleave([plain.measure, other.measure], partial(report, f"timing {what}"))
        except CorralError:  # the model or this CPU does not support it
            continue
        on_measurement(Measurement(what, after, note=f"{option}: {after.over(before)}; rounds differently"))


def _best(values: Sequence[float], usual: int) -> int:
    """Return the index of the largest value, unless the gain is noise."""
    best = max(range(len(values)), key=values.__getitem__)
    return best if values[best] >= _LEAST_GAIN * values[usual] else usual
