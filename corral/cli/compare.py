"""The command `corral compare`: how far a model file is from another, on a text that comes with Corral."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from corral.cli.transfer import sized
from corral.core.errors import CorralError
from corral.llama.divergence import (
    MAX_MEAN_KL,
    MIN_TOP1,
    Divergence,
    keeps_quality,
    measure_divergence,
    sample_text,
)
from corral.llama.file_type import FILE_TYPES
from corral.llama.model_file import read_model

_MAX_TEXT_BYTES = 4 << 20
_MAX_THREADS = 512  # libllama has no more


class ComparedFile(msgspec.Struct, frozen=True):
    path: str
    n_bytes: int
    type: str
    perplexity: float


def run_compare(argv: Sequence[str]) -> int:
    options = _parse(argv)
    out = Console(highlight=False)
    try:
        text = _read_text(options.text) if options.text else sample_text()
        facts = [_look_at(path) for path in (options.a, options.b)]
        with _progress() as on_progress:
            divergence = measure_divergence(options.a, options.b, text, on_progress, options.threads)
    except CorralError as error:
        sys.stderr.write(f"corral: {error.message}\n")
        return 1
    a = msgspec.structs.replace(facts[0], perplexity=divergence.perplexity_a)
    b = msgspec.structs.replace(facts[1], perplexity=divergence.perplexity_b)
    if options.json:
        sys.stdout.write(_as_json(a, b, divergence) + "\n")
    else:
        _print(a, b, divergence, out)
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="corral compare",
        description="Tell how far model B is from model A, of which it is another encoding: the perplexity "
        "of both, and the KL divergence of the tokens they expect.",
        allow_abbrev=False,
    )
    parser.add_argument("a", metavar="A.gguf", help="what B is measured against")
    parser.add_argument("b", metavar="B.gguf", help="a model with the same vocabulary")
    parser.add_argument(
        "-t", "--threads", metavar="N", type=int, default=0, help="(default: one per physical core)"
    )
    parser.add_argument("--text", metavar="FILE", help="compare on this text instead of Corral's own")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(argv)
    if not 0 <= options.threads <= _MAX_THREADS:
        parser.error(f"--threads {options.threads}: it must be between 0 and {_MAX_THREADS}")
    return options


def _read_text(name: str) -> str:
    path = Path(name)
    try:
        if path.stat().st_size > _MAX_TEXT_BYTES:
            raise CorralError(f"'{name}' is longer than {sized(_MAX_TEXT_BYTES)}: take a part of it")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CorralError(f"cannot read '{name}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise CorralError(f"'{name}' is not a text in UTF-8") from None


def _look_at(path: str) -> ComparedFile:
    """The file, without its perplexity yet; raises if it is no model."""
    parts, headers = read_model(path)
    declared = headers[0].metadata.get("general.file_type")
    type = FILE_TYPES.get(declared, "unknown") if isinstance(declared, int) else "unknown"
    return ComparedFile(path, sum(os.path.getsize(part) for part in parts), type, 0.0)


def _as_json(a: ComparedFile, b: ComparedFile, divergence: Divergence) -> str:
    numbers = msgspec.structs.asdict(divergence)
    del numbers["perplexity_a"], numbers["perplexity_b"]
    found = {"a": a, "b": b, **numbers, "keeps_quality": keeps_quality(divergence)}
    return msgspec.json.format(msgspec.json.encode(found)).decode()


@contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    """A bar where there is a terminal, else nothing."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("comparing"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


def _print(a: ComparedFile, b: ComparedFile, divergence: Divergence, out: Console) -> None:
    files = _file_rows(a, b)
    if out.is_terminal:
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in files[0]:
            table.add_column(overflow="fold")
        for row in files:
            table.add_row(*row)
        out.print(table, markup=False)
    else:
        _print_lines(files, out)
    title = f"\nKL divergence of B from A at {divergence.n_tokens:,} positions, in nats"
    out.print(title, markup=False, soft_wrap=True)
    _print_lines(_number_rows(divergence), out)
    out.print(f"\n{_verdict(divergence)}", markup=False, soft_wrap=True)


def _file_rows(a: ComparedFile, b: ComparedFile) -> list[tuple[str, str, str]]:
    return [
        ("", "A", "B"),
        ("file", os.path.basename(a.path), os.path.basename(b.path)),
        ("size", sized(a.n_bytes), sized(b.n_bytes)),
        ("type", a.type, b.type),
        ("perplexity", f"{a.perplexity:.4f}", f"{b.perplexity:.4f}"),
    ]


def _number_rows(divergence: Divergence) -> list[tuple[str, str]]:
    return [
        ("mean", f"{divergence.mean_kl:.5f} ± {divergence.mean_kl_error:.5f}"),
        ("median", f"{divergence.kl_median:.5f}"),
        ("90 %", f"{divergence.kl_p90:.5f}"),
        ("99 %", f"{divergence.kl_p99:.5f}"),
        ("maximum", f"{divergence.max_kl:.5f}"),
        ("same first choice", f"{divergence.top1:.2%} ± {divergence.top1_error:.2%}"),
    ]


def _print_lines(rows: Sequence[Sequence[str]], out: Console) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        out.print(line.rstrip(), markup=False, soft_wrap=True)


def _verdict(divergence: Divergence) -> str:
    limits = f"mean below {MAX_MEAN_KL:g}, same first choice above {MIN_TOP1:.0%}"
    if keeps_quality(divergence):
        return f"B keeps the quality of A ({limits})."
    return f"B does not keep the quality of A ({limits})."
