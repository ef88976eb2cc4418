"""What a person at the terminal sees while the server starts and runs: log lines, and a bar where there is a
terminal."""

from __future__ import annotations

import logging
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from corral.core.pooling import Pooling
from corral.core.result import ModelInfo
from corral.core.settings import ServerSettings, Settings
from corral.server.listen import UNIX
from corral.server.log import level_of

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress

_PLAIN_STEP = 0.25
_STDERR = 2
_log = logging.getLogger("corral")


class Console:
    def __init__(self, settings: Settings, name: str = "") -> None:
        """`name`: of what is loaded, if it is not the model."""
        self._settings = settings
        self._out = bar_console(settings.server)
        self._name = name or Path(settings.engine.model).name
        self._bar: Progress | None = None
        self._what = ""  # is going on
        self._next_line = _PLAIN_STEP

    def listening(self, address: str) -> None:
        fields = {"address": address, "model": self._name}
        _log.info("listening on %(address)s, loading %(model)s", fields)

    def loading(self, fraction: float, what: str = "") -> None:
        """`what` is done, if it is not the loading itself."""
        what = what or f"loading {self._name}"
        if what != self._what:
            self._end_bar()
            self._what, self._next_line = what, _PLAIN_STEP
        if self._out is not None:
            self._show_bar(self._out, fraction)
        elif fraction >= self._next_line:
            fields = {"what": what, "fraction": round(fraction, 3), "percent": int(100 * fraction)}
            _log.info("%(what)s: %(percent)d%%", fields)
            self._next_line = fraction + _PLAIN_STEP

    def ready(self, address: str, info: ModelInfo) -> None:
        self._end_bar()
        name = self._settings.server.alias or self._name
        fields = {
            "address": address,
            "model": name,
            "description": info.description,
            "n_bytes": info.n_bytes,
            "n_slots": info.n_slots,
            "n_ctx": info.n_ctx,
            "media": [kind.value for kind in info.media],
        }
        details = "\n".join(
            [*_describe(name, info), f"try      {_example(address, self._settings.server, info)}"]
        )
        _log.info("ready on %(address)s", fields, extra={"details": details})

    def restarting(self, reason: str) -> None:
        self._next_line = _PLAIN_STEP
        message = "engine lost (%(reason)s), starting a new one; running requests will go on"
        _log.warning(message, {"reason": reason})

    def _show_bar(self, console: RichConsole, fraction: float) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.add_task(self._what, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=fraction)
        if fraction >= 1.0:
            self._end_bar()

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def bar_console(server: ServerSettings) -> RichConsole | None:
    """Where there may be bars among the lines of the log, if anywhere."""
    is_wanted = server.log_format == "text" and level_of(server) <= logging.INFO
    if not is_wanted or not os.isatty(_STDERR):
        return None
    from rich.console import Console as RichConsole  # a moment to import, and few servers have a terminal

    console = RichConsole(stderr=True, highlight=False)
    return console if console.is_terminal else None


def _describe(name: str, info: ModelInfo) -> list[str]:
    lines = [f"model    {name} ({info.description}, {info.n_bytes / 2**20:,.0f} MiB)"]
    if info.can_generate:
        lines.append(f"slots    {info.n_slots}, each with a context of {info.n_ctx} tokens")
    if info.media:
        lines.append(f"takes    text, {', '.join(kind.value for kind in info.media)}")
    if not info.can_generate:
        encoder = info.encoder
        lines.append(f"vectors  of up to {encoder.n_tokens} tokens, pooling {encoder.pooling.value}")
    return lines


def _example(address: str, server: ServerSettings, info: ModelInfo) -> str:
    """A command that asks the server something."""
    words = ["curl"]
    if address.startswith(UNIX):
        words += ["--unix-socket", shlex.quote(address.removeprefix(UNIX))]
        address = "https://localhost" if server.ssl_cert_file else "http://localhost"
    if server.api_keys or server.api_key_file:
        words.append('-H "Authorization: Bearer $API_KEY"')
    path, body = _question(info)
    return " ".join([*words, address + path, f"-d '{body}'"])


def _question(info: ModelInfo) -> tuple[str, str]:
    if info.can_generate:
        return "/v1/chat/completions", '{"messages": [{"role": "user", "content": "Tell me a joke."}]}'
    if info.encoder.pooling is not Pooling.RANK:
        return "/embedding", '{"content": "Tell me a joke."}'
    if len(info.encoder.labels) > 1:
        return "/classify", '{"inputs": "That was a good one."}'
    return "/rerank", '{"query": "jokes", "documents": ["Two cows meet.", "Cows eat grass."]}'
