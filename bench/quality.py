"""Measure how far a model file diverges from another: `python -m bench.quality A.gguf B.gguf`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from corral.cli.table import print_json, print_lines, print_table
from corral.core.errors import CorralError
from corral.gguf.file_type import FILE_TYPES
from corral.gguf.model_file import read_model
from corral.models.files.bar import progress_bar
from corral.models.files.transfer import sized
from corral.tuning.comparison import (
    MAX_ERRORS,
    MAX_MEAN_KL,
    MAX_RATIO,
    Comparison,
    compare_models,
    keeps_quality,
)
from corral.tuning.divergence import Divergence, sample_text

_MAX_TEXT_BYTES = 4 << 20
_MAX_THREADS = 512  # libllama's maximum


class ComparedFile(msgspec.Struct, frozen=True):
    path: str
    n_bytes: int
    type: str
    perplexity: float


def main(args: Sequence[str]) -> int:
    options = _parse(args)
    out = Console(highlight=False)
    try:
        text = _read_text(options.text) if options.text else sample_text()
        facts = [_look_at(path) for path in (options.a, options.b)]
        with progress_bar() as report:
            found = compare_models(options.a, options.b, text, report, options.threads)
    except CorralError as error:
        sys.stderr.write(f"quality: {error.message}\n")
        return 1
    a = msgspec.structs.replace(facts[0], perplexity=found.b_from_a.perplexity_a)
    b = msgspec.structs.replace(facts[1], perplexity=found.b_from_a.perplexity_b)
    if options.json:
        print_json(_facts(a, b, found))
    else:
        _print(a, b, found, out)
    return 0


def _parse(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.quality",
        description="Measure how much model B, a re-encoding of model A, differs from it: the "
        "perplexity of both, the KL divergence of their next-token distributions, and the "
        "divergence of both from a reference, which is A's weights decoded to floats "
        "(written to the cache and removed afterwards).",
        allow_abbrev=False,
    )
    parser.add_argument("a", metavar="A.gguf", help="the model that B is compared with")
    parser.add_argument("b", metavar="B.gguf", help="a model with the same vocabulary")
    parser.add_argument(
        "-t", "--threads", metavar="N", type=int, default=0, help="(default: one per physical core)"
    )
    parser.add_argument("--text", metavar="FILE", help="compare on this text instead of the built-in one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(args)
    if not 0 <= options.threads <= _MAX_THREADS:
        parser.error(f"--threads {options.threads}: must be between 0 and {_MAX_THREADS}")
    return options


def _read_text(name: str) -> str:
    path = Path(name)
    try:
        if path.stat().st_size > _MAX_TEXT_BYTES:
            raise CorralError(f"'{name}' is larger than {sized(_MAX_TEXT_BYTES)}; use a part of it")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CorralError(f"cannot read '{name}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise CorralError(f"'{name}' is not UTF-8 text") from None


def _look_at(path: str) -> ComparedFile:
    """Describe the file, with its perplexity still 0. Raises if it is not a model."""
    parts, headers = read_model(path)
    declared = headers[0].metadata.get("general.file_type")
    type = FILE_TYPES.get(declared, "unknown") if isinstance(declared, int) else "unknown"
    return ComparedFile(path, sum(os.path.getsize(part) for part in parts), type, 0.0)


def _facts(a: ComparedFile, b: ComparedFile, found: Comparison) -> dict[str, Any]:
    reference = {
        "type": found.reference,
        "perplexity": found.a.perplexity_a,
        "a": _numbers(found.a),
        "b": _numbers(found.b),
    }
    answer = {"a": a, "b": b, **_numbers(found.b_from_a), "reference": reference}
    return {**answer, "keeps_quality": keeps_quality(found)}


def _numbers(divergence: Divergence) -> dict[str, float]:
    """Return all numbers except the perplexities, which belong to the files."""
    numbers: dict[str, float] = msgspec.structs.asdict(divergence)
    return {name: value for name, value in numbers.items() if not name.startswith("perplexity")}


def _print(a: ComparedFile, b: ComparedFile, found: Comparison, out: Console) -> None:
    files = _file_rows(a, b, found)
    divergence = found.b_from_a
    print_table(files, out)
    title = f"\nKL divergence of B from A at {divergence.n_tokens:,} positions, in nats"
    out.print(title, markup=False, soft_wrap=True)
    print_lines(_number_rows(divergence), out)
    out.print(f"\n{_verdict(found)}", markup=False, soft_wrap=True)


def _file_rows(a: ComparedFile, b: ComparedFile, found: Comparison) -> list[tuple[str, str, str]]:
    reference = f"A in {found.reference}"
    return [
        ("", "A", "B"),
        ("file", os.path.basename(a.path), os.path.basename(b.path)),
        ("size", sized(a.n_bytes), sized(b.n_bytes)),
        ("type", a.type, b.type),
        ("perplexity", f"{a.perplexity:.4f}", f"{b.perplexity:.4f}"),
        (f"KL from {reference}", _mean_kl(found.a), _mean_kl(found.b)),
        (f"same top token as {reference}", _top1(found.a), _top1(found.b)),
    ]


def _mean_kl(divergence: Divergence) -> str:
    return f"{divergence.mean_kl:.5f} ± {divergence.mean_kl_error:.5f}"


def _top1(divergence: Divergence) -> str:
    return f"{divergence.top1:.2%} ± {divergence.top1_error:.2%}"


def _number_rows(divergence: Divergence) -> list[tuple[str, str]]:
    return [
        ("mean", _mean_kl(divergence)),
        ("median", f"{divergence.kl_median:.5f}"),
        ("90 %", f"{divergence.kl_p90:.5f}"),
        ("99 %", f"{divergence.kl_p99:.5f}"),
        ("maximum", f"{divergence.max_kl:.5f}"),
        ("same top token", _top1(divergence)),
    ]


def _verdict(found: Comparison) -> str:
    limits = (
        f"KL from A in {found.reference} at most {MAX_RATIO:g} x A's, same top token as often "
        f"within {MAX_ERRORS:g} standard errors, KL from A below {MAX_MEAN_KL:g}"
    )
    keeps = "keeps" if keeps_quality(found) else "does not keep"
    return f"B {keeps} the quality of A ({limits})."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
