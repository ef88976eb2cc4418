"""Options that Corral once had: each is refused with what to use instead."""

from __future__ import annotations

from corral.cli.options.option import Option

_REMOVED = {  # option -> what it took, what to use instead
    "--fronts": ("N", "start several servers with --shared-storage, each with its own --engines or --ray"),
}

OPTIONS = tuple(
    Option((name,), "removed in 0.13", metavar, target="", refusal=f"removed in 0.13: {instead}", n_args=1)
    for name, (metavar, instead) in _REMOVED.items()
)
