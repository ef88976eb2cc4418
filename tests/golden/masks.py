"""What may differ between two plays of a case, and why. All else of an answer is recorded byte for byte.

The wall clock and seeds are injected (`server.py`), so dates and draws need no mask.
"""

from __future__ import annotations

import re

from corral import __version__
from corral.core.libllama import BUILD_INFO

# Durations and speeds of this machine at this moment.
_MEASURED = re.compile(
    r'("(?:(?:prompt|predicted)(?:_per_token)?_ms|(?:prompt|predicted)_per_second|(?:total|load|eval|prompt_eval)_duration'
    r'|save_ms|restore_ms|t_ms|seconds)":)-?\d[\d.e+-]*'
)
# The monitor looks once a second, at times that are its own.
_WATCHED = re.compile(r'("(?:now|since)":\d+|"samples":\[[^]]*\]|(?<="engine":\{)"state":"\w+")')
# Metrics of durations and of this process.
_METRIC = re.compile(r"^((?:process_|\S*seconds)\S*(?:\{.*\})?) \S+$", re.MULTILINE)
# Metrics of a feature that goes: copies of states between engines.
_GOING = re.compile(r"^(?:# \w+ )?corral_(?:state_cop|copied_)\S*.*\n", re.MULTILINE)
# Offsets in streams count the digits of durations.
_OFFSET = re.compile(r'^(id: (?:stream_\w+\.)?)\d+$|("total_bytes":)\d+', re.MULTILINE)
# Of a batch that is just over, its run may still be known.
_ETA = re.compile(r',"eta_seconds":\d+')
# Random ids: each gets the number of its first appearance in the case, so that the same one is recognized.
# One of an item of a response ends with its index.
_ID = re.compile(
    r"(?<![0-9a-f])(?:([0-9a-f]{32})(?=[0-9a-f]{8}(?![0-9a-f]))|([0-9a-f]{24}|[0-9a-f]{32}|[0-9a-f]{48})(?![0-9a-f]))"
)
# Logarithms and norms: their last digits are those of this CPU.
_LONG = re.compile(r"(?<![\w.])-?\d+\.\d{7,}(?:e-?\d+)?(?![\w.])")
_TEXTS = {
    __version__: "<version>",  # of Corral
    BUILD_INFO: "<build>",  # of libllama
}
HEADERS = {
    "content-length": "follows from the body, of which parts are masked",
    "etag": "follows from the time of a file",
    "last-modified": "the clock of the file system",
    "x-queue-position": "only of requests that a busy machine lets wait",
    "x-queue-wait-ms": "only of requests that a busy machine lets wait",
}
COMMENT = re.compile(
    r"^: queue position .*\n\n", re.MULTILINE
)  # only where a busy machine lets a stream wait


def _name_only(found: re.Match[str]) -> str:
    return f'{found[0].partition(":")[0]}:"<watched>"'


class Masks:
    """Mutable: the ids of one play."""

    def __init__(self, directory: str) -> None:
        self._texts = {directory: "<dir>", **_TEXTS}
        self._ids: dict[str, int] = {}

    def apply(self, text: str) -> str:
        for found, shown in self._texts.items():
            text = text.replace(found, shown)
        text = _MEASURED.sub(r'\1"<measured>"', COMMENT.sub("", text))
        text = _OFFSET.sub(lambda found: f'{found[1] or found[2]}"<offset>"', text)
        text = _WATCHED.sub(_name_only, _METRIC.sub(r"\1 <measured>", _ETA.sub("", _GOING.sub("", text))))
        return _LONG.sub(lambda found: f"{float(found[0]):.6g}", _ID.sub(self._name, text))

    def _name(self, found: re.Match[str]) -> str:
        number = self._ids.setdefault(found[0], len(self._ids) + 1)
        return f"<id {number}: {len(found[0])} hex>"
