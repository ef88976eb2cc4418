"""Candidate encodings of a model for `corral tune`: re-encoded, timed, and compared if they are faster."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

import msgspec

from corral.core.errors import CorralError, InsufficientStorage
from corral.core.settings import EngineSettings
from corral.llama.hardware import thread_counts
from corral.llama.model import Model
from corral.tuning.benchmark import Benchmark, interleave
from corral.tuning.comparison import Comparison, compare_models, keeps_quality
from corral.tuning.divergence import sample_text
from corral.tuning.encoding import Report, with_file
from corral.tuning.profile import Speed, TuningProfile, transcoded_path

_LEAST_GAIN = 1.1
_MOST_LOSS = 0.95  # ratio of any single speed


class Candidate(msgspec.Struct, frozen=True):
    """An encoding that was timed, and compared if it is faster. `fault`: why that failed."""

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


def try_encodings(
    settings: EngineSettings, hash: str, encodings: Sequence[str], report: Report
) -> tuple[Speed, list[Candidate]]:
    """Return the speed of the model as it is, and the candidates. Files of candidates that are not better are
    removed."""
    with contextlib.closing(Model.load(settings)) as base:
        if not base.can_generate:
            raise CorralError("only generative models can be measured")
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
        return interleave([benchmark.measure], partial(report, "timing the file as it is"))[0]


def _try(
    settings: EngineSettings, base: Model, hash: str, encoding: str, report: Report
) -> tuple[Speed, Candidate]:
    path = transcoded_path(hash, encoding)
    was_there = path.exists()
    other = with_file(settings, hash, encoding, partial(report, f"re-encoding to {encoding}"))
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
