"""Options that Corral once had: each is refused with what to use instead."""

from __future__ import annotations

from corral.cli.options.option import Option
from corral.core.removed import OPTIONS as REMOVED
from corral.core.removed import explain_removal

OPTIONS = tuple(
    Option((name,), "removed in 0.13", metavar, target="", refusal=explain_removal(instead))
    for name, (metavar, instead) in REMOVED.items()
)
