"""Check that several machines see the same directories: by files that one writes and the others look for."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from corral.core.errors import CorralError

_PREFIX = ".corral-shared-"


@contextlib.contextmanager
def marked(directories: Collection[str]) -> Iterator[list[str]]:
    """Write a marker into each directory, and remove it afterwards; yields their paths. Raises
    CorralError."""
    paths = [Path(directory, _PREFIX + uuid.uuid4().hex) for directory in dict.fromkeys(directories)]
    try:
        for path in paths:
            try:
                path.touch()
            except OSError as error:
                raise CorralError(f"{path.parent} cannot be written: {error.strerror}") from None
        yield [str(path) for path in paths]
    finally:
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def unseen(markers: Collection[str]) -> list[str]:
    """Return the directories in which this machine does not see the marker."""
    return [str(Path(marker).parent) for marker in markers if not _is_there(Path(marker))]


def _is_there(marker: Path) -> bool:
    try:
        # Network file systems cache lists for less time than names that were not there.
        return marker.name in {path.name for path in marker.parent.iterdir()}
    except OSError:
        return False
