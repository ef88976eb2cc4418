"""Words that were retired stay out of identifiers: the field has others for the same things."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RETIRED = {
    "AdapterDesk": "AdapterRegistry",
    "Arrange": "LayoutMedia",
    "Arranged": "MediaLayout",
    "Beat": "Heartbeat",
    "Board": "Telemetry",
    "Dialogue": "ChatFormat",
    "Entry": "PendingTask",
    "Finding": "CheckResult or Measurement",
    "Freedom": "ToolChoice",
    "Gate": "LoadingApp",
    "Holding": "CachedPrefix",
    "Jobs": "Coroutines",
    "Keeper": "EngineLifecycle",
    "Kin": "ReuseKey",
    "Lanes": "SlotTimeline",
    "Leg": "TaskRecord",
    "MarkedWords": "Baseline.tokenize",
    "MediaDesk": "MediaEncoder",
    "MediaVocab": "Baseline.tokenize",
    "Medium": "MediaItem",
    "NotNumbers": "NonFiniteLogits",
    "Order": "Command",
    "Pace": "DraftLength",
    "Patience": "IdleTimer or RetryPolicy",
    "Pictures": "RequestMedia",
    "Pulse": "HeartbeatMonitor",
    "Receipt": "Version",
    "Supervisor": "EngineClient",
    "Tally": "TokenCounters",
    "Traffic": "RecordMiddleware",
    "Trial": "Benchmark",
    "Turns": "CoreTimeSlicer",
    "Visit": "RequestRecord",
    "Watcher": "RecordObserver",
    "Words": "Vocab",
    "apply_server_changes": "make_tasks",
    "aside": "run_prompt",
    "dialogue": "chat_format",
    "end_of_thoughts": "reasoning_end",
    "extract_media": "load_media",
    "freedom": "choice",
    "in_leisure": "run_text",
    "is_spelled": "is_valid_layout",
    "is_stranger": "is_anonymous",
    "kin": "reuse_key",
    "probe_ahead": "probe_exact",
    "race": "interleave",
    "realm": "tenant",
    "service_of": "state_of",
    "require_room": "check_queue",
    "spell": "placeholder_tokens",
    "takes_moved": "accepts_shifted",
    "takes_moved_of": "accepts_shifted_of",
    "thoughts": "reasoning",
    "visit_of": "record_of",
    "vocab_for": "Baseline.tokenize",
    "words_for": "Baseline.tokenize",
}
_WORD = re.compile(rf"\b({'|'.join(RETIRED)})\b")


@pytest.mark.parametrize("folder", ["corral", "bench", "tools", "tests"])
def test_retired_words_are_in_no_identifier(folder):
    found = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}, now {RETIRED[token.string]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for token in _tokens(path)
        if token.type == tokenize.NAME and token.string in RETIRED
    ]
    assert not found, "\n".join(found)


def _tokens(path: Path) -> list[tokenize.TokenInfo]:
    """The tokens of a file that has one of the words; to find them in all files takes a minute."""
    if not _WORD.search(path.read_text()):
        return []
    with path.open("rb") as file:
        return list(tokenize.tokenize(file.readline))
