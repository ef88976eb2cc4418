"""Record groups of golden answers: `python -m tests.golden.record GROUP...`"""

from __future__ import annotations

import asyncio
import sys

from tests.golden.play import play
from tests.golden.recording import groups, path_of, write


def main(names: list[str]) -> None:
    known = groups()
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        sys.exit(f"name one or more of these groups: {', '.join(known)}")
    for name in names:
        if path_of(name).exists():
            sys.exit(f"{path_of(name)} is recorded; delete it if clients are to see something else")
    for name in names:
        write(name, [(case.name, asyncio.run(play(case))) for case in known[name]])


if __name__ == "__main__":
    main(sys.argv[1:])
