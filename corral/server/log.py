"""Logging to stderr and to a file, as text or as JSON.

Everything uses Python's `logging`, mostly as "corral". In JSON, a record with named arguments becomes an
object with these fields. `details` of a record are further lines of the text format.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime, timezone
from logging.handlers import QueueListener

import orjson

from corral.core.errors import CorralError
from corral.core.file import write_all
from corral.core.settings import ServerSettings

_LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)  # by verbosity
_COLORS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[1;31m"}
_PLAIN = "\x1b[0m"
_OURS = "corral"
# Names that are shown for loggers.
_SOURCES = {"corral.engine": "engine", "corral.tokenizer": "tokenizer", "uvicorn.error": "http"}
_DEFAULT_NAME = "corral"  # of new files without --log-file
_MAX_CHARS = 8 << 20  # of lines in the queue
_WRITTEN_CHARS = 64 << 10  # at once
_FLUSH_S = 2.0
_PAUSE_S = 0.01
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_log = logging.getLogger(_OURS)

# No line names threads or processes, so records need not find out about them.
logging.logThreads = logging.logMultiprocessing = logging.logProcesses = False


def log_to_stderr(server: ServerSettings) -> None:
    """Log to stderr, with these settings instead of earlier ones."""
    _replace(_Stderr, _Stderr(), server)


def log_to_file(server: ServerSettings) -> None:
    """Log to the file of the settings too, if they name one. A second call does nothing.

    compat: --log-disable affects the file only, stderr has --verbosity; --log-file NAME is NAME.log.
    """
    if not server.log or not (server.log_file or server.log_new) or _installed(_File):
        return
    try:
        path = _with_extension(server.log_file)
        fd = _create_new(path) if server.log_new else _open(path, server.log_append)
    except OSError as error:
        where = f"'{server.log_file or _DEFAULT_NAME}'"
        raise CorralError(
            f"--log-file {where} cannot be written: {error.strerror}; choose another one"
        ) from None
    _replace(_File, _File(fd), server)


def log_in_background() -> None:
    """Write from a thread, so that a blocked reader does not stall the server. Queued lines are written
    at exit."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LineHandler):
            handler.detach()


def close_log() -> None:
    for handler in _installed(_Stderr) + _installed(_File):
        logging.getLogger().removeHandler(handler)
        handler.close()
    _log.setLevel(logging.NOTSET)


def report_fatal(message: str) -> None:
    """Log why the server ends; without a log yet, write it to stderr."""
    if _installed(_Stderr):
        _log.critical("%s", message)
    else:
        sys.stderr.write(f"{_OURS}: {message}\n")


def level_of(server: ServerSettings) -> int:
    """Return the lowest level that is logged."""
    return _LEVELS[max(0, min(server.verbosity, len(_LEVELS) - 1))]


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = record.args if isinstance(record.args, Mapping) else {}
        line: dict[str, object] = {
            "ts": _utc(record.created),
            "level": _level_name(record),
            "msg": _clean(record.getMessage()),
            **({"logger": record.name} if record.name != _OURS else {}),
            **({"exception": _clean(self.formatException(record.exc_info))} if record.exc_info else {}),
        }
        for name, value in fields.items():
            line.setdefault(name, _clean(value) if isinstance(value, str) else value)
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", orjson.dumps(line, default=str).decode())


class TextFormatter(logging.Formatter):
    """Formats lines for users. Escapes text from clients: it can neither imitate another line nor control a
    terminal."""

    def __init__(self, is_dated: bool, has_colors: bool = False) -> None:
        super().__init__()
        self._is_dated = is_dated
        self._has_colors = has_colors
        self._second, self._when = -1, ""  # of the last line

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        if details := getattr(record, "details", ""):
            text = f"{text}\n{details}"
        if not text.isprintable():
            text = "\n  ".join(map(_escape, text.split("\n")))
        line = self._prefix(record) + text
        color = _COLORS.get(record.levelno) if self._has_colors else None
        return f"{color}{line}{_PLAIN}" if color else line

    def _prefix(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.CRITICAL and not self._is_dated:
            return f"{_OURS}: "
        second = int(record.created)
        if second != self._second:
            form = "%Y-%m-%d %H:%M:%S" if self._is_dated else "%H:%M:%S"
            self._second, self._when = second, time.strftime(form, time.localtime(second))
        level = "" if record.levelno <= logging.INFO else f"{_level_name(record)}: "
        source = "" if record.name == _OURS else f"{_source(record.name)}: "
        return f"{self._when} {level}{source}"


class _LineQueue(queue.Queue["str | None"]):
    """A queue of lines that is bounded by characters."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._n_chars = 0

    def _qsize(self) -> int:
        return self._n_chars

    def _put(self, item: str | None) -> None:
        super()._put(item)
        self._n_chars += _n_chars(item)

    def _get(self) -> str | None:
        item: str | None = super()._get()
        self._n_chars -= _n_chars(item)
        return item

    def take(self, n_chars: int) -> list[str]:
        """Return further lines up to a size, without waiting; `written` says when they are done with."""
        lines: list[str] = []
        with self.mutex:
            while self.queue and self.queue[0] is not None and n_chars > 0:
                line = self._get()
                assert line is not None
                lines.append(line)
                n_chars -= _n_chars(line)
        return lines

    def written(self, n: int) -> None:
        for _ in range(n):
            self.task_done()


class _LineHandler(logging.Handler, ABC):
    """Writes lines directly or, once detached, from a thread: a blocked reader then stalls no caller, and
    lines beyond `_MAX_CHARS` are dropped and counted."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = _LineQueue(_MAX_CHARS)
        self._listener: _Listener | None = None
        self.n_dropped = 0

    @abstractmethod
    def write(self, text: str) -> None:
        """Write one line or several; must not raise."""

    def detach(self) -> None:
        if self._listener is None:
            self._listener = _Listener(self._lines, self)
            self._listener.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self._listener is None:
            self.write(line)
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.n_dropped += 1

    def flush(self) -> None:
        """Wait until everything is written, at most `_FLUSH_S`: the reader may be gone."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(lambda: not self._lines.unfinished_tasks, _FLUSH_S)

    def close(self) -> None:
        if self._listener is not None:
            self.flush()
            with contextlib.suppress(queue.Full):  # still blocked: the thread is a daemon
                self._listener.enqueue_sentinel()
        super().close()


class _Listener(QueueListener):
    """Never stopped with `stop`, which would wait for a blocked reader."""

    def __init__(self, lines: _LineQueue, handler: _LineHandler) -> None:
        super().__init__(lines)
        self._lines = lines
        self._handler = handler
        self._n_reported = 0

    def handle(self, line: str) -> None:  # type: ignore[override]
        more = self._lines.take(_WRITTEN_CHARS)
        self._handler.write("\n".join([line, *more]))
        self._lines.written(len(more))
        n = self._handler.n_dropped - self._n_reported
        if n and self._lines.empty():
            self._n_reported += n
            text = "%(n)d lines were dropped here: earlier lines were not read in time"
            report = _log.makeRecord(_OURS, logging.WARNING, __file__, 0, text, ({"n": n},), None)
            self._handler.write(self._handler.format(report))
        if self._lines.empty():
            time.sleep(_PAUSE_S)  # else each line of a busy server wakes this thread


def _n_chars(line: str | None) -> int:
    return 1 if line is None else len(line) + 1


class _Stderr(_LineHandler):
    """Looks up `sys.stderr` every time, since a progress bar replaces it."""

    def write(self, text: str) -> None:
        text = f"{text}\n"
        out, own = sys.stderr, sys.__stderr__
        with contextlib.suppress(OSError, ValueError):  # it was closed
            if own is not None and out is own:
                # Bypass its buffer: a thread blocked in it would keep the interpreter from exiting.
                write_all(own.fileno(), text.encode("utf-8", "backslashreplace"))
            elif out is not None:
                out.write(text)
                out.flush()


class _File(_LineHandler):
    """Appends to a file. Lines that do not fit on a full disk are lost, which is logged once."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._is_torn = False

    def write(self, text: str) -> None:
        try:
            data = f"{text}\n".encode("utf-8", "backslashreplace")
            # Start a new line after a partly written one.
            write_all(self._fd, b"\n" + data if self._is_torn else data)
            self._is_torn = False
        except OSError as error:
            self._tell(error)

    def close(self) -> None:
        super().close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _tell(self, error: OSError) -> None:
        if not self._is_torn:
            self._is_torn = True
            _log.warning("--log-file: cannot write: %s; lines will be missing in it", error.strerror)


def _installed(kind: type[logging.Handler]) -> list[logging.Handler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, kind)]


def _replace(kind: type[logging.Handler], handler: logging.Handler, server: ServerSettings) -> None:
    """Install a handler on the root logger, so that warnings of libraries are logged too."""
    for old in _installed(kind):
        logging.getLogger().removeHandler(old)
        old.close()
    handler.setLevel(level_of(server))
    is_json, is_file = server.log_format == "json", kind is _File
    plain = TextFormatter(is_dated=is_file, has_colors=not is_file and _shows_colors())
    handler.setFormatter(JsonFormatter() if is_json else plain)
    logging.getLogger().addHandler(handler)
    _log.setLevel(level_of(server))


def _shows_colors() -> bool:
    """Whether stderr is a terminal that shows colors, and they are not turned off (no-color.org)."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _with_extension(path: str) -> str:
    """Add `.log` to a name without an extension; devices and pipes keep their names."""
    is_special = os.path.exists(path) and not os.path.isfile(path)
    return path if not path or is_special or "." in os.path.basename(path) else f"{path}.log"


def _open(path: str, appends: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.open(path, flags if appends else flags | os.O_TRUNC, 0o666)


def _create_new(path: str) -> int:
    """Create a new file NAME.ID.log."""
    stem = (path or _DEFAULT_NAME).removesuffix(".log")
    start = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    for i in range(1000):
        try:
            return os.open(f"{stem}.{start}{f'-{i}' if i else ''}.log", flags, 0o666)
        except FileExistsError:
            continue
    raise FileExistsError(17, "too many files with this name", path)


def _source(name: str) -> str:
    """Return what is shown for a logger: `engine 2` for that of an engine of several."""
    parent, _, number = name.rpartition(".")
    return f"{_SOURCES[parent]} {number}" if number.isdecimal() else _SOURCES.get(name, name)


def _level_name(record: logging.LogRecord) -> str:
    return "fatal" if record.levelno == logging.CRITICAL else record.levelname.lower()


def _utc(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _clean(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


def _escape(line: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), line)
