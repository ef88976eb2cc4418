"""Explain errors of a start that has not enough of what the system gives: descriptors, memory, threads.

They come from anywhere, also from inside of libraries, so they are recognized when they end the program.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

_FILES = (errno.EMFILE, errno.ENFILE)
_MEMORY_TEXTS = (
    os.strerror(errno.ENOMEM).lower(),
    "failed to map segment",  # of the dynamic linker
    "can't start new thread",
)


def explain_exhaustion(error: BaseException) -> str:
    """Return what is missing and the limit that applies, or "" for any other error."""
    for each in _chain(error):
        text, number = str(each).lower(), each.errno if isinstance(each, OSError) else None
        if number in _FILES or os.strerror(errno.EMFILE).lower() in text:
            return f"too many open files: {_limit('RLIMIT_NOFILE', 1)} (ulimit -n)"
        if isinstance(each, MemoryError) or number == errno.ENOMEM or any(t in text for t in _MEMORY_TEXTS):
            limit = _limit("RLIMIT_AS", 1 << 20, " MiB")
            return f"not enough memory or threads: {limit} (ulimit -v; threads: ulimit -u)"
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _limit(name: str, unit: int, suffix: str = "") -> str:
    soft, _ = resource.getrlimit(getattr(resource, name))
    return "there is no limit" if soft == resource.RLIM_INFINITY else f"the limit is {soft // unit}{suffix}"
