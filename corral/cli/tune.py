"""`corral tune`: benchmark a model with several encodings on this machine, and keep the best for servers."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import msgspec
import psutil

from corral.cli.configuration import configure
from corral.cli.given import UsageError
from corral.cli.model_source import resolve_model
from corral.core.settings import EngineSettings
from corral.core.transcoding import OFF
from corral.models.files.bar import progress_bar
from corral.tuning.profile import TuningProfile
from corral.tuning.tune import Measurement, tune

_USAGE = """\
usage: corral tune [-m FILE] [OPTION ...]

Measure a model in several encodings, with several thread counts and batch sizes, and store the fastest
configuration that keeps its quality; servers use it for this file from then on. Options are those of the
server; only those that select the model, and -t, -tb, -ub and -c, have an effect. Takes about a minute for a
small model.
"""
_BUSY = 0.7  # load average
_HEAD = f"{'':36} {'prompt':>9} {'1 stream':>9} {'4 streams':>9}   tokens/s"


def run_tune(args: Sequence[str]) -> int:
    configuration = configure(args)
    if configuration.command == "help":
        sys.stdout.write(_USAGE)
        return 0
    if configuration.command:
        raise UsageError("corral tune cannot be combined with it; see `corral tune --help`")
    settings = resolve_model(configuration.settings).engine
    if (load := psutil.getloadavg()[0]) > _BUSY:
        sys.stderr.write(f"other programs are running (load {load:.1f}): the results may be unreliable\n")
    sys.stdout.write(f"{settings.model}\n{_HEAD}\n")
    with progress_bar() as report:
        profile = tune(_plain(settings), report, _print)
    sys.stdout.write(f"{_summary(settings.model, profile)}\n")
    return 0


def _print(measurement: Measurement) -> None:
    cells = (_cell(number) for number in msgspec.structs.astuple(measurement.speed))
    sign = "*" if measurement.is_chosen else " "
    line = f"{sign} {measurement.what:34} {' '.join(cells)}   {measurement.note}"
    sys.stdout.write(f"{line.rstrip()}\n")
    sys.stdout.flush()


def _plain(settings: EngineSettings) -> EngineSettings:
    """Return the settings without features that a benchmark does not need."""
    return msgspec.structs.replace(settings, transcode=OFF, mmproj="", model_draft="", n_parallel=1)


def _cell(number: float) -> str:
    return f"{'-' if math.isnan(number) else format(number, '.1f'):>9}"


def _summary(model: str, profile: TuningProfile) -> str:
    options = f"-t {profile.n_threads} -tb {profile.n_threads_batch} -ub {profile.n_ubatch}"
    if not profile.encoding:
        return f"chosen: the file as it is, {options}; servers use this for the file from now on"
    return f"chosen: {profile.encoding} ({profile.gain}), {options}; servers use this for {model} from now on"
