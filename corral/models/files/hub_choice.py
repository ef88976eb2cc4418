"""Choose which files of a repository make up a model: by quantization, in parts, with a projector.

Decides by names alone, as llama-server does.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from corral.core.errors import CorralError
from corral.gguf.model_file import part_names

_NO_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")
_MAX_NAMED = 12


def choose_model(paths: Sequence[str], quant: str) -> str | None:
    """Choose the model file with this quantization, or with a common one if `quant` is empty."""
    firsts = [path for path in paths if _is_model(path) and part_names(path)[0] == path]
    for wanted in (quant,) if quant else _DEFAULT_QUANTS:
        exact = re.compile(rf"(?<![a-z0-9_]){re.escape(wanted)}[.-]", re.IGNORECASE)
        loose = re.compile(rf"{re.escape(wanted)}[.-]", re.IGNORECASE)
        for pattern in (exact, loose):
            for path in firsts:
                if pattern.search(path):
                    return path
    if quant:
        return None
    of_four_bits = [path for path in firsts if "Q4" in quant_of(path)]
    return next(iter(of_four_bits or firsts), None)


def choose_projector(paths: Iterable[str], model: str) -> str | None:
    """Choose the projector for a model: the nearest directory first, then the closest number of bits."""
    directory = model.split("/")[:-1]
    found: dict[str, tuple[int, int]] = {}  # directory depth and difference in bits
    for path in paths:
        above = path.split("/")[:-1]
        if path.endswith(".gguf") and "mmproj" in path and directory[: len(above)] == above:
            found[path] = -len(above), abs(_n_bits(path) - _n_bits(model))
    return min(found, key=found.__getitem__, default=None)


def no_such_quant(repo: str, paths: Iterable[str], quant: str) -> CorralError:
    quants = sorted({quant_of(path) for path in paths if _is_model(path)} - {""})
    if not quants:
        return CorralError(f"--hf-repo: {repo} has no GGUF files")
    return CorralError(f"--hf-repo: {repo} has no {quant}; available: {_listed(quants)}")


def no_such_file(repo: str, paths: Iterable[str], name: str) -> CorralError:
    models = [path for path in paths if path.endswith(".gguf")]
    if not models:
        return CorralError(f"--hf-file: {repo} has no GGUF files")
    near = difflib.get_close_matches(name, models, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"available: {_listed(models)}"
    return CorralError(f"--hf-file: {repo} has no file '{name}'; {hint}")


def quant_of(path: str) -> str:
    """Return the quantization, which is the end of a model file's name by convention."""
    found = _TAG.search(_PART.sub("", path.removesuffix(".gguf")))
    return found[1].upper() if found else ""


def _is_model(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith(".gguf") and not any(word in name for word in _NO_MODELS)


def _n_bits(path: str) -> int:
    found = re.search(r"\d+", quant_of(path))
    return int(found[0]) if found else 0


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
