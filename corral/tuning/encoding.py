"""`--transcode`: use a model in the encoding for which this CPU has fast kernels.

A start measures nothing: it uses the profile that `corral tune` stored on this machine, or one that ships
with Corral (`shipped`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from corral.core.errors import CorralError
from corral.core.settings import DEFAULT_UBATCH, EngineSettings
from corral.core.transcoding import AUTO, OFF
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.model_file import main_type
from corral.llama import device
from corral.llama.hardware import thread_counts, uses_gpu
from corral.llama.repack import repacked_types
from corral.tuning.profile import TuningProfile, content_hash, known_hash, read_profile, transcoded_path
from corral.tuning.shipped import shipped_profile
from corral.tuning.transcode import transcode

Report = Callable[[str, float], None]  # description and fraction of the work

KEEPING = "Q8_0"  # precise enough for any stronger quantization, and often for weaker ones
_KEEPING_NUMBER = 8  # as a tensor type
_log = logging.getLogger(__name__)


class ChosenEncoding(NamedTuple):
    """The settings of an engine, and for the log the encoding of its weights and the reason."""

    settings: EngineSettings
    weights: str = ""


def with_encoding(settings: EngineSettings, report: Report) -> ChosenEncoding:
    """Return the settings with the file to open. `report` gets the progress of a re-encoding: what, and
    why."""
    device.start(settings)
    encoding = settings.transcode
    if encoding == OFF or (encoding == AUTO and uses_gpu(settings)):
        return ChosenEncoding(settings)
    given = GGML_TYPES[main_type(settings.model)].name.upper()
    if encoding != AUTO:
        why = f"requested by --transcode {encoding}"
        on_progress = partial(report, f"the weights from {given} to {encoding}: {why}")
        settings = with_file(settings, content_hash(settings.model), encoding, on_progress)
        return ChosenEncoding(settings, f"{encoding}, re-encoded from {given}: {why}")
    try:
        return _as_known(settings, given, report)
    except (CorralError, OSError) as error:
        reason = error.message if isinstance(error, CorralError) else error.strerror
        _log.warning("%s", f"the encoding of the model does not change (--transcode {AUTO}): {reason}")
        return ChosenEncoding(settings, f"{given} as in the file")


def promising_encodings(model: str) -> list[str]:
    """Return encodings that may be faster: fewer bytes per token, or special kernels that the present type
    lacks."""
    kind, repacked = main_type(model), repacked_types()
    has_kernels = _KEEPING_NUMBER in repacked and kind not in repacked
    is_uncompressed = GGML_TYPES[kind].n_values == 1
    return [KEEPING] if has_kernels or is_uncompressed else []


def _as_known(settings: EngineSettings, given: str, report: Report) -> ChosenEncoding:
    """Use the profile of `corral tune` on this machine, or a shipped one; otherwise hint at `corral tune`."""
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
    return ChosenEncoding(settings, f"{given} as in the file{_hint(settings)}")


def _as_chosen(
    settings: EngineSettings, hash: str, profile: TuningProfile, given: str, why: str, report: Report
) -> ChosenEncoding:
    on_progress = partial(report, f"the weights from {given} to {profile.encoding}: {why}")
    settings = with_profile(settings, hash, profile, on_progress)
    if not profile.encoding:
        return ChosenEncoding(settings, f"{given} as in the file: {why}")
    weights = f"{profile.encoding}, re-encoded from {given}: {why}; --transcode {OFF} uses the file as it is"
    return ChosenEncoding(settings, weights)


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
    """Apply a profile. Explicit options win."""
    if profile.encoding:
        settings = with_file(settings, hash, profile.encoding, on_progress)
    is_default = settings.n_ubatch == DEFAULT_UBATCH
    return msgspec.structs.replace(
        settings,
        n_threads=settings.n_threads or profile.n_threads,
        n_threads_batch=settings.n_threads_batch or settings.n_threads or profile.n_threads_batch,
        n_ubatch=profile.n_ubatch if profile.n_ubatch and is_default else settings.n_ubatch,
    )


def with_file(
    settings: EngineSettings, hash: str, encoding: str, on_progress: Callable[[float], None]
) -> EngineSettings:
    path = transcoded_path(hash, encoding)
    if not path.exists():
        transcode(settings.model, path, encoding, on_progress, thread_counts(settings)[1])
    return msgspec.structs.replace(settings, model=str(path))
