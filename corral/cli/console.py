"""Terminal output while the server starts and runs: log lines, and a progress bar on a terminal."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corral.core.pooling import Pooling
from corral.core.result import BatchExact, Loading, ModelInfo, Stage
from corral.core.settings import ServerSettings, Settings
from corral.models.files.bar import Bar
from corral.server.listen import UNIX
from corral.server.log import level_of

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

_PLAIN_STEP = 0.25
_STDERR = 2
_MAX_NAMES = 20
_log = logging.getLogger("corral")


class Console:
    def __init__(self, settings: Settings, name: str = "") -> None:
        """`name`: what is loaded; the default is the model's file name."""
        self._settings = settings
        self._out = bar_console(settings.server)
        self._name = name or Path(settings.engine.model).name
        self._bar: Bar | None = None
        self._what = ""  # the step in progress
        self._next_line = _PLAIN_STEP

    def listening(self, address: str) -> None:
        fields = {"address": address, "model": self._name}
        _log.info("listening on %(address)s, loading %(model)s", fields)

    def loading(self, loading: Loading) -> None:
        what = f"{loading.stage.value} {loading.detail or self._name}"
        if what != self._what:
            self.close()
            # "Loaded" was already logged when the server began to listen.
            self._what, self._next_line = what, _PLAIN_STEP if loading.stage is Stage.LOADING else 0.0
            if self._out is not None and loading.stage is Stage.RE_ENCODING:
                _log.info("%s", what)  # the reason is too long for the bar's line
        if self._out is not None:
            self._show_bar(self._out, loading)
        elif loading.progress >= self._next_line:
            self._write_line(loading)

    def _write_line(self, loading: Loading) -> None:
        fraction = loading.progress
        fields = {
            "what": self._what,
            "stage": loading.stage.value,
            "fraction": round(fraction, 3),
            "percent": int(100 * fraction),
        }
        _log.info("%(what)s: %(percent)d%%", fields)
        self._next_line = fraction + _PLAIN_STEP

    def ready(self, address: str, info: ModelInfo) -> None:
        self.close()
        name = next(iter(self._settings.server.aliases), self._name)
        fields = {
            "address": address,
            "model": name,
            "description": info.description,
            "n_bytes": info.n_bytes,
            "n_slots": info.n_slots,
            "n_ctx": info.n_ctx,
            "media": [kind.value for kind in info.media],
        }
        lines = [*_describe(name, info), *_invite(address, self._settings.server, info)]
        details = "\n".join(lines)
        _log.info("ready on %(address)s", fields, extra={"details": details})

    def ready_for_many(self, address: str, names: Sequence[str]) -> None:
        fields = {"address": address, "models": list(names)}
        lines = [f"models   {len(names)}, loaded when a request names them: {', '.join(names[:_MAX_NAMES])}"]
        if not address.startswith(UNIX):
            lines.append(f"list     {address}/models")
        _log.info("ready on %(address)s", fields, extra={"details": "\n".join(lines)})

    def located(self, settings: Settings) -> None:
        """Record the paths of the local files once they were found or downloaded."""
        self._settings, self._name = settings, Path(settings.engine.model).name

    def restarting(self, reason: str) -> None:
        self._next_line = _PLAIN_STEP
        message = "engine lost (%(reason)s), starting a new one; running requests will continue"
        _log.warning(message, {"reason": reason})

    def close(self) -> None:
        """Remove the bar and restore the terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _show_bar(self, console: RichConsole, loading: Loading) -> None:
        if self._bar is None:
            self._bar = Bar(console, f"{loading.stage.value} {self._name}")
        self._bar.update(loading.progress)
        if loading.progress >= 1.0:
            self.close()


def bar_console(server: ServerSettings) -> RichConsole | None:
    """Return the console for progress bars, or None if there is no terminal or the log level or format
    excludes them."""
    is_wanted = server.log_format == "text" and level_of(server) <= logging.INFO
    if not is_wanted or not os.isatty(_STDERR):
        return None
    from rich.console import Console as RichConsole  # slow import; few servers have a terminal

    console = RichConsole(stderr=True, highlight=False)
    return console if console.is_terminal else None


def _describe(name: str, info: ModelInfo) -> list[str]:
    lines = [f"model    {name} ({info.description}, {info.n_bytes / 2**20:,.0f} MiB)"]
    if info.weights:
        lines.append(f"weights  {info.weights}")
    if info.can_generate:
        lines.append(f"slots    {info.n_slots}, each with a context of {info.n_ctx} tokens")
    if info.batch_exact.n_streams or info.batch_exact.reason:
        lines.append(f"exact    {_describe_exactness(info.batch_exact)}")
    if info.media:
        lines.append(f"input    text, {', '.join(kind.value for kind in info.media)}")
    if not info.can_generate:
        encoder = info.encoder
        lines.append(f"embeds   inputs of up to {encoder.n_tokens} tokens, pooling {encoder.pooling.value}")
    return lines


def _describe_exactness(known: BatchExact) -> str:
    """Describe up to how many streams answers do not depend on each other, and why no more."""
    if known.reason:
        return f"answers may depend on requests beside them: {known.reason}"
    types = ", ".join(f"{type} {n}" for type, n in known.limits.items())
    why = f" ({types} on this CPU)" if types else ""
    if known.is_on:
        return f"answers do not depend on requests beside them: batches of at most {known.n_streams}{why}"
    if known.n_streams == 1:
        return f"streams beside each other may change each other{why}"
    return f"up to {known.n_streams} streams share a batch without changing each other{why}"


def _invite(address: str, server: ServerSettings, info: ModelInfo) -> list[str]:
    """Return the lines that show how to use the running server."""
    address = address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    lines = [f"try      {_example(address, server, info)}"]
    if server.ui and info.can_generate and not address.startswith(UNIX):
        lines.insert(0, f"page     open {address} in a browser")
    return lines


def _example(address: str, server: ServerSettings, info: ModelInfo) -> str:
    """Return a curl command that sends a request to the server."""
    args = ["curl"]
    if address.startswith(UNIX):
        args += ["--unix-socket", shlex.quote(address.removeprefix(UNIX))]
        address = "https://localhost" if server.ssl_cert_file else "http://localhost"
    if server.api_keys or server.api_key_file:
        args.append('-H "Authorization: Bearer $API_KEY"')
    path, body = _question(info)
    return " ".join([*args, address + path, f"-d '{body}'"])


def _question(info: ModelInfo) -> tuple[str, str]:
    if info.can_generate:
        return "/v1/chat/completions", '{"messages": [{"role": "user", "content": "Tell me a joke."}]}'
    if info.encoder.pooling is not Pooling.RANK:
        return "/embedding", '{"content": "Tell me a joke."}'
    if len(info.encoder.labels) > 1:
        return "/classify", '{"inputs": "That was a good one."}'
    return "/rerank", '{"query": "jokes", "documents": ["Two cows meet.", "Cows eat grass."]}'
