"""`--transcode`: a model in the encoding for which this CPU has fast kernels.

What is faster is measured, and chosen only if the model says the same as before; both are kept in the cache.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from corral.core.errors import CorralError
from corral.core.settings import DEFAULT_UBATCH, EngineSettings
from corral.core.transcoding import AUTO, OFF, TUNED, WAYS
from corral.llama import device
from corral.llama.choice import (
    Choice,
    alone_with,
    content_hash,
    known_hash,
    read_choice,
    transcoded_path,
    write_choice,
)
from corral.llama.divergence import Divergence, keeps_quality, measure_divergence, sample_text
from corral.llama.ggml_type import GGML_TYPES
from corral.llama.hardware import thread_counts, uses_gpu
from corral.llama.model import Model
from corral.llama.model_file import read_model
from corral.llama.repack import repacked_types
from corral.llama.transcode import transcode
from corral.llama.trial import Speed, Trial, race

Report = Callable[[str, float], None]  # what is done, and how much of it

KEEPING = "Q8_0"  # fine enough for whatever is more compressed, and often for what is not
_KEEPING_NUMBER = 8  # as a type of tensors
_LEAST_GAIN = 1.1
_MOST_LOSS = 0.95  # of anything
_log = logging.getLogger(__name__)


class Candidate(msgspec.Struct, frozen=True):
    """An encoding that was tried. `divergence` is measured only of what is faster."""

    encoding: str
    speed: Speed
    gain: Speed
    divergence: Divergence | None = None

    @property
    def is_faster(self) -> bool:
        return self.gain.least >= _MOST_LOSS and self.gain.mean >= _LEAST_GAIN

    @property
    def is_better(self) -> bool:
        return self.divergence is not None and keeps_quality(self.divergence)


def with_encoding(settings: EngineSettings, report: Report) -> EngineSettings:
    """The settings of an engine that opens the file which `--transcode` leads to."""
    device.start(settings)
    if settings.transcode not in WAYS:
        return _with_file(settings, content_hash(settings.model), settings.transcode, report)
    if settings.transcode == OFF or uses_gpu(settings):
        return settings
    if settings.transcode == TUNED:
        return _as_tuned(settings)
    try:
        return _as_chosen(settings, report)
    except (CorralError, OSError) as error:
        reason = error.message if isinstance(error, CorralError) else error.strerror
        _log.warning("%s", f"the model stays encoded as it is (--transcode {AUTO}): {reason}")
        return settings


def promising_encodings(model: str) -> list[str]:
    """Less to read for every token, or kernels of its own on this CPU where that of most weights has none."""
    kind, repacked = main_type(model), repacked_types()
    has_kernels = _KEEPING_NUMBER in repacked and kind not in repacked
    is_uncompressed = GGML_TYPES[kind].n_values == 1
    return [KEEPING] if has_kernels or is_uncompressed else []


def main_type(model: str) -> int:
    """The type that most of the weights have."""
    _, headers = read_model(model)
    sizes: Counter[int] = Counter()
    for header in headers:
        for tensor in header.tensors.values():
            sizes[tensor.type] += math.prod(tensor.shape)
    return sizes.most_common(1)[0][0]


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


def choose(candidates: Sequence[Candidate]) -> Choice:
    better = [candidate for candidate in candidates if candidate.is_better]
    if not better:
        return Choice()
    best = max(better, key=lambda candidate: candidate.gain.mean)
    return Choice(encoding=best.encoding, gain=best.gain)


def _speed_of(settings: EngineSettings, model: Model, report: Report) -> Speed:
    with contextlib.closing(Trial(model, settings)) as trial:
        return race([trial.measure], partial(report, "timing the model as it is"))[0]


def _try(
    settings: EngineSettings, base: Model, hash: str, encoding: str, report: Report
) -> tuple[Speed, Candidate]:
    path = transcoded_path(hash, encoding)
    was_there = path.exists()
    other = _with_file(settings, hash, encoding, report)
    with (
        contextlib.closing(Model.load(other)) as model,
        contextlib.closing(Trial(base, settings)) as given,
        contextlib.closing(Trial(model, other)) as made,
    ):
        before, after = race([given.measure, made.measure], partial(report, f"timing {encoding}"))
    candidate = Candidate(encoding, after, after.over(before))
    if candidate.is_faster:
        divergence = measure_divergence(
            settings.model,
            other.model,
            sample_text(),
            partial(report, f"comparing {encoding}"),
            thread_counts(settings)[1],
        )
        candidate = msgspec.structs.replace(candidate, divergence=divergence)
    if not candidate.is_better and not was_there:
        path.unlink(missing_ok=True)
    return before, candidate


def _as_chosen(settings: EngineSettings, report: Report) -> EngineSettings:
    hash = content_hash(settings.model)
    with alone_with(hash):
        choice = read_choice(hash)
        if choice is None:
            encodings = promising_encodings(settings.model)
            choice = choose(try_encodings(settings, hash, encodings, report)[1]) if encodings else Choice()
            write_choice(hash, choice)
    return with_choice(settings, hash, choice, report)


def _as_tuned(settings: EngineSettings) -> EngineSettings:
    """As `corral tune` has chosen; else somebody may want to know that it can be run."""
    hash = known_hash(settings.model)
    choice = read_choice(hash) if hash else None
    if choice is not None:
        return with_choice(settings, hash, choice, _silently)
    with contextlib.suppress(CorralError):
        if promising_encodings(settings.model) and not settings.only_embeds:
            theirs = GGML_TYPES[main_type(settings.model)].name.upper()
            _log.info(
                "%s",
                f"hint: weights in {KEEPING} may be twice as fast on this CPU as in {theirs}. "
                f"To measure it, once: corral tune -m {settings.model}",
            )
    return settings


def with_choice(settings: EngineSettings, hash: str, choice: Choice, report: Report) -> EngineSettings:
    """What was said on the command line stays."""
    if choice.encoding:
        settings = _with_file(settings, hash, choice.encoding, report)
        gain = f"weights are loaded as {choice.encoding}: {choice.gain} as fast"
        _log.info("%s", f"{gain} (--transcode {OFF} takes the file as it is)")
    is_default = settings.n_ubatch == DEFAULT_UBATCH
    return msgspec.structs.replace(
        settings,
        n_threads=settings.n_threads or choice.n_threads,
        n_threads_batch=settings.n_threads_batch or settings.n_threads or choice.n_threads_batch,
        n_ubatch=choice.n_ubatch if choice.n_ubatch and is_default else settings.n_ubatch,
    )


def _with_file(settings: EngineSettings, hash: str, encoding: str, report: Report) -> EngineSettings:
    path = transcoded_path(hash, encoding)
    if not path.exists():
        n_threads = thread_counts(settings)[1]
        transcode(settings.model, path, encoding, partial(report, f"re-encoding to {encoding}"), n_threads)
    return msgspec.structs.replace(settings, model=str(path))


def _silently(_what: str, _fraction: float) -> None: ...
