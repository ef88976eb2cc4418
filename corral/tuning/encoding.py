"""`--transcode`: a model in the encoding for which this CPU has fast kernels.

A start measures nothing: it uses the profile that `corral tune` made on this machine, or that Corral ships
(`shipped`). Benchmarks are for `corral tune`; an encoding is chosen if it is faster and as good.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from corral.core.errors import CorralError, InsufficientStorage
from corral.core.settings import DEFAULT_UBATCH, EngineSettings
from corral.core.transcoding import AUTO, OFF
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.model_file import main_type
from corral.llama import device
from corral.llama.hardware import thread_counts, uses_gpu
from corral.llama.model import Model
from corral.llama.repack import repacked_types
from corral.tuning.benchmark import Benchmark, Speed, interleave
from corral.tuning.comparison import Comparison, Report, compare_models, keeps_quality
from corral.tuning.divergence import sample_text
from corral.tuning.profile import TuningProfile, content_hash, known_hash, read_profile, transcoded_path
from corral.tuning.shipped import shipped_profile
from corral.tuning.transcode import transcode

KEEPING = "Q8_0"  # fine enough for whatever is more compressed, and often for what is not
_KEEPING_NUMBER = 8  # as a type of tensors
_LEAST_GAIN = 1.1
_MOST_LOSS = 0.95  # of anything
_log = logging.getLogger(__name__)


class Encoded(NamedTuple):
    """The settings of an engine, and for the log which encoding its weights have and why."""

    settings: EngineSettings
    weights: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """An encoding that was tried. Only what is faster is compared; `fault`: why that was not possible."""

    encoding: str
    speed: Speed
    gain: Speed
    comparison: Comparison | None = None
    fault: str = ""

    @property
    def is_faster(self) -> bool:
        return self.gain.least >= _MOST_LOSS and self.gain.mean >= _LEAST_GAIN

    @property
    def is_better(self) -> bool:
        return self.comparison is not None and keeps_quality(self.comparison)


def with_encoding(settings: EngineSettings, report: Report) -> Encoded:
    """What an engine opens; `report` hears of re-encoding, if there has to be some: to what, and why."""
    device.start(settings)
    encoding = settings.transcode
    if encoding == OFF or (encoding == AUTO and uses_gpu(settings)):
        return Encoded(settings)
    given = GGML_TYPES[main_type(settings.model)].name.upper()
    if encoding != AUTO:
        why = f"asked for with --transcode {encoding}"
        on_progress = partial(report, f"the weights from {given} to {encoding}: {why}")
        settings = _with_file(settings, content_hash(settings.model), encoding, on_progress)
        return Encoded(settings, f"{encoding}, re-encoded from {given}: {why}")
    try:
        return _as_known(settings, given, report)
    except (CorralError, OSError) as error:
        reason = error.message if isinstance(error, CorralError) else error.strerror
        _log.warning("%s", f"the model stays encoded as it is (--transcode {AUTO}): {reason}")
        return Encoded(settings, f"{given} as in the file")


def promising_encodings(model: str) -> list[str]:
    """Less to read for every token, or kernels of its own on this CPU where that of most weights has none."""
    kind, repacked = main_type(model), repacked_types()
    has_kernels = _KEEPING_NUMBER in repacked and kind not in repacked
    is_uncompressed = GGML_TYPES[kind].n_values == 1
    return [KEEPING] if has_kernels or is_uncompressed else []


def try_encodings(
    settings: EngineSettings, hash: str, encodings: Sequence[str], report: Report
) -> tuple[Speed, list[Candidate]]:
    """How fast the model is as it is, and what was found out about others; files of the useless are gone."""
    with contextlib.closing(Model.load(settings)) as base:
        if not base.can_generate:
            raise CorralError("only the speed of models that generate is measured")
        found = [_try(settings, base, hash, encoding, report) for encoding in encodings]
        if not found:
            return _speed_of(settings, base, report), []
        return found[0][0], [candidate for _, candidate in found]


def choose(candidates: Sequence[Candidate]) -> TuningProfile:
    better = [candidate for candidate in candidates if candidate.is_better]
    if not better:
        return TuningProfile()
    best = max(better, key=lambda candidate: candidate.gain.mean)
    return TuningProfile(encoding=best.encoding, gain=best.gain)


def _speed_of(settings: EngineSettings, model: Model, report: Report) -> Speed:
    with contextlib.closing(Benchmark(model, settings)) as benchmark:
        return interleave([benchmark.measure], partial(report, "timing the model as it is"))[0]


def _try(
    settings: EngineSettings, base: Model, hash: str, encoding: str, report: Report
) -> tuple[Speed, Candidate]:
    path = transcoded_path(hash, encoding)
    was_there = path.exists()
    other = _with_file(settings, hash, encoding, partial(report, f"re-encoding to {encoding}"))
    with (
        contextlib.closing(Model.load(other)) as model,
        contextlib.closing(Benchmark(base, settings)) as given,
        contextlib.closing(Benchmark(model, other)) as made,
    ):
        before, after = interleave([given.measure, made.measure], partial(report, f"timing {encoding}"))
    candidate = Candidate(encoding, after, after.over(before))
    if candidate.is_faster:
        candidate = _compare(candidate, settings, other.model, report)
    if not candidate.is_better and not was_there:
        path.unlink(missing_ok=True)
    return before, candidate


def _compare(candidate: Candidate, settings: EngineSettings, path: str, report: Report) -> Candidate:
    n_threads = thread_counts(settings)[1]
    try:
        found = compare_models(settings.model, path, sample_text(), report, n_threads)
    except InsufficientStorage as error:
        return msgspec.structs.replace(candidate, fault=error.message)
    return msgspec.structs.replace(candidate, comparison=found)


def _as_known(settings: EngineSettings, given: str, report: Report) -> Encoded:
    """As `corral tune` has chosen on this machine, or as Corral knows; else a hint that it can be run."""
    hash = known_hash(settings.model)
    if hash and (profile := read_profile(hash)) is not None:
        why = f"{profile.gain} as fast, same quality" if profile.encoding else "the fastest"
        return _as_chosen(settings, hash, profile, given, f"{why} (measured here by corral tune)", report)
    if (shipped := shipped_profile(settings.model)) is not None:
        profile = shipped.profile
        quality = f"{profile.gain} as fast, same quality"
        why = quality if profile.encoding else f"in {KEEPING} {profile.gain} as fast"
        where = f"measured for this model on {shipped.cpu}"
        return _as_chosen(settings, shipped.hash, profile, given, f"{why} ({where})", report)
    return Encoded(settings, f"{given} as in the file{_hint(settings)}")


def _as_chosen(
    settings: EngineSettings, hash: str, profile: TuningProfile, given: str, why: str, report: Report
) -> Encoded:
    on_progress = partial(report, f"the weights from {given} to {profile.encoding}: {why}")
    settings = with_profile(settings, hash, profile, on_progress)
    if not profile.encoding:
        return Encoded(settings, f"{given} as in the file: {why}")
    weights = f"{profile.encoding}, re-encoded from {given}: {why}; --transcode {OFF} takes the file as it is"
    return Encoded(settings, weights)


def _hint(settings: EngineSettings) -> str:
    if settings.only_embeds or not promising_encodings(settings.model):
        return ""
    return f"; {KEEPING} may be faster on this CPU, `corral tune -m {settings.model}` measures it"


def with_profile(
    settings: EngineSettings,
    hash: str,
    profile: TuningProfile,
    on_progress: Callable[[float], None] = lambda _: None,
) -> EngineSettings:
    """What was said on the command line stays."""
    if profile.encoding:
        settings = _with_file(settings, hash, profile.encoding, on_progress)
    is_default = settings.n_ubatch == DEFAULT_UBATCH
    return msgspec.structs.replace(
        settings,
        n_threads=settings.n_threads or profile.n_threads,
        n_threads_batch=settings.n_threads_batch or settings.n_threads or profile.n_threads_batch,
        n_ubatch=profile.n_ubatch if profile.n_ubatch and is_default else settings.n_ubatch,
    )


def _with_file(
    settings: EngineSettings, hash: str, encoding: str, on_progress: Callable[[float], None]
) -> EngineSettings:
    path = transcoded_path(hash, encoding)
    if not path.exists():
        transcode(settings.model, path, encoding, on_progress, thread_counts(settings)[1])
    return msgspec.structs.replace(settings, model=str(path))
