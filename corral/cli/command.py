"""What `corral` does instead of serving, by the first word of its command line.

What a command needs is imported where it is run: the others do not wait for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from corral.cli.given import UsageError


def run_models(words: Sequence[str]) -> int:
    from corral.cli import model_cache

    return model_cache.run_models(words)


def run_doctor(words: Sequence[str]) -> int:
    from corral.cli import doctor

    return doctor.run_doctor(words)


def run_tune(words: Sequence[str]) -> int:
    from corral.cli import tune

    return tune.run_tune(words)


def run_compare(words: Sequence[str]) -> int:
    from corral.cli import compare

    return compare.run_compare(words)


def run_completion(words: Sequence[str]) -> int:
    """Print a script for a shell."""
    from corral.cli.help import SHELLS, completion

    if len(words) != 1 or words[0] not in SHELLS:
        raise UsageError(f"corral completion {{{','.join(SHELLS)}}}: prints a script that completes options")
    sys.stdout.write(completion(words[0]))
    return 0


COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "models": run_models,
    "doctor": run_doctor,
    "compare": run_compare,
    "tune": run_tune,
    "completion": run_completion,
}
