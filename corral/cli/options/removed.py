"""Options that Corral once had: each is refused with what to use instead."""

from __future__ import annotations

from corral.cli.options.option import Option
from corral.core.removed import OPTIONS as REMOVED
from corral.core.removed import explain_removal

OPTIONS = tuple(
    Option((name,), metavar=metavar, target="", refusal=explain_removal(instead))
    for name, (metavar, instead) in REMOVED.items()
)
