"""What a person at the terminal sees: a bar where there is a terminal, plain lines elsewhere."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from corral.core.pooling import Pooling
from corral.core.result import ModelInfo
from corral.core.settings import Settings

_PLAIN_STEP = 0.25


class Console:
    def __init__(self, settings: Settings, name: str = "") -> None:
        """`name`: of what is loaded, if it is not the model."""
        self._settings = settings
        self._out = RichConsole(stderr=True, highlight=False)
        self._name = name or Path(settings.engine.model).name
        self._bar: Progress | None = None
        self._next_line = _PLAIN_STEP

    def listening(self, address: str) -> None:
        self._line(f"corral: listening on {address}, loading {self._name}")

    def loading(self, fraction: float) -> None:
        if self._out.is_terminal:
            self._show_bar(fraction)
        elif fraction >= self._next_line:
            self._line(f"corral: loading {self._name}: {fraction:.0%}")
            self._next_line = fraction + _PLAIN_STEP

    def ready(self, address: str, info: ModelInfo) -> None:
        self._end_bar()
        size = f"{info.n_bytes / 2**20:,.0f} MiB"
        self._line(f"corral: ready on {address}")
        self._line(f"  model    {self._settings.server.alias or self._name} ({info.description}, {size})")
        if info.can_generate:
            self._line(f"  slots    {info.n_slots}, each with a context of {info.n_ctx} tokens")
        if info.media:
            self._line(f"  takes    text, {', '.join(kind.value for kind in info.media)}")
        if not info.can_generate:
            encoder = info.encoder
            self._line(f"  vectors  of up to {encoder.n_tokens} tokens, pooling {encoder.pooling.value}")
        path, body = _example(info)
        self._line(f"  try      curl {address}{path} -d '{body}'")

    def restarting(self, reason: str) -> None:
        self._next_line = _PLAIN_STEP
        self._line(f"corral: engine lost ({reason}), starting a new one; running requests will go on")

    def note(self, message: str) -> None:
        self._line(f"corral: {message}")

    def error(self, message: str) -> None:
        self._end_bar()
        self._line(f"corral: {message}")

    def _show_bar(self, fraction: float) -> None:
        if self._bar is None:
            columns = (TextColumn("loading {task.description}"), BarColumn(), TaskProgressColumn())
            self._bar = Progress(*columns, console=self._out, transient=True)
            self._bar.add_task(self._name, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=fraction)
        if fraction >= 1.0:
            self._end_bar()

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _line(self, text: str) -> None:
        self._out.print(text, markup=False, soft_wrap=True)


def _example(info: ModelInfo) -> tuple[str, str]:
    if info.can_generate:
        return "/v1/chat/completions", '{"messages": [{"role": "user", "content": "Tell me a joke."}]}'
    if info.encoder.pooling is not Pooling.RANK:
        return "/embedding", '{"content": "Tell me a joke."}'
    if len(info.encoder.labels) > 1:
        return "/classify", '{"inputs": "That was a good one."}'
    return "/rerank", '{"query": "jokes", "documents": ["Two cows meet.", "Cows eat grass."]}'
