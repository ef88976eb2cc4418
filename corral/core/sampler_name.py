"""Names, aliases and letters of samplers."""

from __future__ import annotations

from collections.abc import Iterable

from corral.core.params import SAMPLER_NAMES

_ALIASES = {
    "typical_p": "typ_p",
    "typical": "typ_p",
    "typ": "typ_p",
    "tfs": "tfs_z",
    "temp": "temperature",
    "nucleus": "top_p",
}
_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "f": "tfs_z",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}


def samplers_by_name(names: Iterable[str]) -> tuple[str, ...]:
    """Resolve names and aliases; dashes equal underscores. Raises ValueError for an unknown name."""
    plain = (name.replace("-", "_") for name in names)
    return _known(_ALIASES.get(name, name) for name in plain)


def samplers_by_letter(letters: str) -> tuple[str, ...]:
    return _known(_LETTERS.get(letter, letter) for letter in letters)


def _known(names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(names)
    for name in found:
        if name not in SAMPLER_NAMES:
            raise ValueError(f"unknown sampler '{name}'; samplers are {', '.join(SAMPLER_NAMES)}")
    return found
