"""Failures of tasks, as errors again."""

from __future__ import annotations

from corral.core.errors import CorralError, ErrorInfo
from corral.core.result import Failed


def error_of(failed: Failed) -> CorralError:
    return CorralError.from_info(failed.error)


def status_of(failed: Failed | ErrorInfo) -> int:
    info = failed.error if isinstance(failed, Failed) else failed
    return CorralError.from_info(info).status
