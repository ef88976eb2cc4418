"""What makes a model fast on this machine, found by trying one thing after the other.

Chosen is what keeps its answers: an encoding, threads, the size of batches. Flash attention and the types of
the cache change them, if only in the last bits, and are shown with the options that a person may choose.
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
from corral.llama.hardware import physical_cores
from corral.llama.model import Model
from corral.tuning.choice import Choice, alone_with, content_hash, write_choice
from corral.tuning.comparison import Comparison, Report
from corral.tuning.encoding import KEEPING, Candidate, choose, try_encodings, with_choice
from corral.tuning.trial import Speed, Trial, race

_BATCHES = (128, 256, 512, 1024)
_N_PROMPT = 1024  # to tell batches apart
_LEAST_GAIN = 1.03  # below it the default stays
_WIDE = ("f32", "f16", "bf16")
_OTHERS = (
    ("flash attention on", "-fa on", {"flash_attn": "on"}),
    (
        "cache of q8_0, flash attention",
        "-ctk q8_0 -ctv q8_0",
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    ),
)


class Finding(msgspec.Struct, frozen=True):
    """What was tried, how fast it was, and what is to be said of it."""

    what: str
    speed: Speed
    is_chosen: bool = False
    note: str = ""


Tell = Callable[[Finding], None]


def tune(settings: EngineSettings, report: Report, tell: Tell) -> Choice:
    """Find out and keep it; `tell` hears of everything as it is found."""
    device.start(settings)
    hash = content_hash(settings.model)
    with alone_with(hash):
        choice = _tune_encoding(settings, hash, report, tell)
        settings = with_choice(settings, hash, choice)
        with contextlib.closing(Model.load(settings)) as model:
            choice = _tune_threads(settings, model, choice, report, tell)
            settings = msgspec.structs.replace(
                settings, n_threads=choice.n_threads, n_threads_batch=choice.n_threads_batch
            )
            choice = _tune_batch(settings, model, choice, report, tell)
            _show_others(settings, model, report, tell)
        write_choice(hash, choice)
    return choice


def _tune_encoding(settings: EngineSettings, hash: str, report: Report, tell: Tell) -> Choice:
    kind = GGML_TYPES[main_type(settings.model)].name
    names = [KEEPING, *(name.upper() for name in _WIDE[1:] if kind in _WIDE)]
    encodings = [name for name in names if name != kind.upper()]
    speed, candidates = try_encodings(settings, hash, encodings, report)
    choice = choose(candidates)
    tell(Finding(f"{kind.upper()}, as it is", speed, not choice.encoding))
    for candidate in candidates:
        is_chosen = candidate.encoding == choice.encoding
        tell(Finding(candidate.encoding, candidate.speed, is_chosen, _verdict(candidate)))
    return choice


def _verdict(candidate: Candidate) -> str:
    if candidate.comparison is None:
        return f"not compared: {candidate.fault}" if candidate.fault else "not faster"
    refusal = f": too far off; --transcode {candidate.encoding} takes it nevertheless"
    return _distances(candidate.comparison) + ("" if candidate.is_better else refusal)


def _distances(found: Comparison) -> str:
    """From the reference, the file as it is and then the candidate."""
    a, b = found.a, found.b
    distances = f"KL {a.mean_kl:.5f} and {b.mean_kl:.5f}, top-1 {a.top1:.2%} and {b.top1:.2%}"
    return f"from {found.reference}: {distances}"


def _tune_threads(
    settings: EngineSettings, model: Model, choice: Choice, report: Report, tell: Tell
) -> Choice:
    counts = thread_candidates(physical_cores(), psutil.cpu_count() or 1)
    with contextlib.closing(Trial(model, settings)) as trial:

        def run(n: int) -> Speed:
            trial.use_threads(n, n)
            return trial.measure()

        speeds = race([partial(run, n) for n in counts], partial(report, "timing threads"))
    usual = counts.index(physical_cores())
    prompt = _best([speed.prompt for speed in speeds], usual)
    stream = _best([math.sqrt(speed.one * speed.four) for speed in speeds], usual)
    for i, (n, speed) in enumerate(zip(counts, speeds, strict=True)):
        roles = [name for name, best in (("answers", stream), ("prompts", prompt)) if best == i]
        note = f"for {' and '.join(roles)}" if roles else ""
        tell(Finding(f"{n} thread{'s' * (n > 1)}", speed, bool(roles), note))
    return msgspec.structs.replace(choice, n_threads=counts[stream], n_threads_batch=counts[prompt])


def thread_candidates(n_cores: int, n_logical: int) -> list[int]:
    """Numbers of threads worth a try: fewer leave a core for the rest of the server, more rarely help."""
    few = range(1, n_cores + 1) if n_cores <= 4 else (n_cores // 2, n_cores - 1, n_cores)
    return sorted({*few, n_logical} if n_logical <= 2 * n_cores else {*few})


def _tune_batch(settings: EngineSettings, model: Model, choice: Choice, report: Report, tell: Tell) -> Choice:
    sizes = [n for n in _BATCHES if n <= settings.n_batch]
    with contextlib.ExitStack() as stack:
        runs = []
        for n in sizes:
            variant = msgspec.structs.replace(settings, n_ubatch=n)
            trial = stack.enter_context(contextlib.closing(Trial(model, variant, _N_PROMPT)))
            runs.append(partial(trial.measure, streams=False))
        speeds = race(runs, partial(report, "timing sizes of batches"))
    usual = sizes.index(settings.n_ubatch) if settings.n_ubatch in sizes else 0
    best = _best([speed.prompt for speed in speeds], usual)
    for i, (n, speed) in enumerate(zip(sizes, speeds, strict=True)):
        tell(Finding(f"-ub {n}", speed, i == best))
    return msgspec.structs.replace(choice, n_ubatch=sizes[best])


def _show_others(settings: EngineSettings, model: Model, report: Report, tell: Tell) -> None:
    for what, option, changes in _OTHERS:
        variant = msgspec.structs.replace(settings, **changes)
        try:
            with (
                contextlib.closing(Trial(model, settings)) as plain,
                contextlib.closing(Trial(model, variant)) as other,
            ):
                before, after = race([plain.measure, other.measure], partial(report, f"timing {what}"))
        except CorralError:  # the model, or this CPU, does not take it
            continue
        tell(Finding(what, after, note=f"{option}: {after.over(before)}; rounds otherwise"))


def _best(values: Sequence[float], usual: int) -> int:
    """The place of the largest, if it is more than chance."""
    best = max(range(len(values)), key=values.__getitem__)
    return best if values[best] >= _LEAST_GAIN * values[usual] else usual
