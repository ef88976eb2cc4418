"""The template process: `python -m corral.link.renderer_worker LIFE FD`. Renders one conversation at a time.

Each has a limit on CPU time and one on memory. Python code that exceeds them ends with an error; a single
call that does not return is ended by the system, with this process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from typing import NoReturn

from corral.chat.jinja_template import ChatTemplate
from corral.chat.template import TemplateLimit
from corral.core.errors import CorralError, ErrorInfo
from corral.link.frame import BlockingChannel
from corral.link.log import log_to_front
from corral.link.rendering import Rendered, Rendering, decode_rendering, max_cpu_s

_N_TEMPLATES = 64  # those of all loaded models: each has its own, and perhaps one for tools
_MAX_KEPT_CHARS = 64 << 10  # of a template; a longer one, which no known model has, is compiled each time
_MIB, _MIB_PER_FRAME_BYTE = 384, 24 / (1 << 20)
_GRACE_S = 1  # more CPU time until the system ends a call that does not return
_log = logging.getLogger("corral")


class _TooSlow(BaseException):
    """No `except Exception` may catch it."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _stop)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log_to_front()
    _life, channel = (BlockingChannel(socket.socket(fileno=int(fd))) for fd in sys.argv[1:])
    try:
        while (body := channel.receive()) is not None:
            channel.send(_answer(body))
    except OSError:
        pass  # the front is gone
    except BaseException:
        _log.exception("unexpected error in the template process")
        os._exit(1)
    os._exit(0)


def _answer(body: bytes) -> Rendered:
    try:
        with _limited(len(body)):
            return Rendered(_render(decode_rendering(body)))
    except CorralError as error:
        return Rendered(error=error.info())
    except _TooSlow:
        return Rendered(error=_limit(f"takes more than {max_cpu_s(len(body)):.0f} s"))
    except MemoryError:
        _compiled.cache_clear()
        return Rendered(error=_limit("needs too much memory"))


def _render(what: Rendering) -> str:
    compile = _compiled if len(what.source) <= _MAX_KEPT_CHARS else ChatTemplate
    template = compile(what.source, what.bos_token, what.eos_token)
    if what.messages is None:
        return ""
    return template.render(what.messages, what.tools, what.add_generation_prompt, what.options)


@functools.lru_cache(_N_TEMPLATES)
def _compiled(source: str, bos_token: str, eos_token: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token, eos_token)


@contextlib.contextmanager
def _limited(n_bytes: int) -> Iterator[None]:
    """Limit the CPU time and the memory of what follows."""
    cpu_s = max_cpu_s(n_bytes)
    _set_limit(resource.RLIMIT_CPU, math.ceil(sum(os.times()[:2]) + cpu_s) + _GRACE_S)
    _set_limit(resource.RLIMIT_AS, _size_bytes() + int((_MIB + n_bytes * _MIB_PER_FRAME_BYTE) * (1 << 20)))
    try:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _set_limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)


def _set_limit(kind: int, value: int) -> None:
    """Set a soft limit, as far as the system and the hard one allow."""
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(kind)[1]
        is_allowed = hard == resource.RLIM_INFINITY or 0 <= value < hard
        resource.setrlimit(kind, (value if is_allowed else hard, hard))


def _size_bytes() -> int:
    """Return the size of the address space; where the system does not tell, nothing."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _limit(reason: str) -> ErrorInfo:
    return TemplateLimit(f"the chat template {reason} for this conversation").info()


def _stop(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    raise _TooSlow


if __name__ == "__main__":
    main()
