"""Print text in columns: folded to the width of a terminal, otherwise one line for each row. Or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table


def print_table(
    rows: Sequence[Sequence[str]], out: Console, header: Sequence[str] = (), right: str = ""
) -> None:
    """Print a table. `right`: the column that is right-aligned on a terminal."""
    if not out.is_terminal:
        print_lines([header, *rows] if header else rows, out)
        return
    table = Table(box=None, pad_edge=False, show_header=bool(header))
    for title in header or [""] * len(rows[0]):
        table.add_column(title, overflow="fold", justify="right" if right and title == right else "left")
    for row in rows:
        table.add_row(*row)
    out.print(table, markup=False)


def print_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    sys.stdout.buffer.flush()


def print_lines(rows: Sequence[Sequence[str]], out: Console) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        out.print("  ".join(cells).rstrip(), markup=False, soft_wrap=True)
