"""An MCP server as a process that reads requests from stdin and writes answers to stdout, one per line.

It gets no variables of this server's environment but those that programs need to run, since the others may be
secrets. It leads a process group, which is killed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal

import orjson

from corral.core.errors import McpError
from corral.mcp.config import McpServer
from corral.mcp.transport import MAX_MESSAGE_BYTES, Message, reply_to

_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_CLOSE_S = 2.0  # for it to end by itself
_MAX_LOG_CHARS = 1000

_log = logging.getLogger("corral")


async def start_process(server: McpServer) -> StdioTransport:
    """Raises McpError."""
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    try:
        process = await asyncio.create_subprocess_exec(
            *server.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_MESSAGE_BYTES,
            env={**env, **server.env},
            cwd=server.cwd,
            start_new_session=True,
        )
    except OSError as error:
        _log.warning("MCP server '%s' cannot be started: %s", server.name, error.strerror)
        raise McpError(f"the MCP server '{server.name}' cannot be started") from None
    return StdioTransport(server.name, process)


class StdioTransport:
    """Mutable: a running process, and the requests that wait for its answers."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._name = name
        self._process = process
        self._stdin = process.stdin
        self._waiting: dict[object, asyncio.Future[Message]] = {}
        self._reader = asyncio.create_task(self._read(process.stdout))
        self._logger = asyncio.create_task(self._log_lines(process.stderr))

    @property
    def is_open(self) -> bool:
        return not self._reader.done()

    async def exchange(self, message: Message) -> Message | None:
        if not self.is_open:
            raise self._ended()
        id = message.get("id")
        if id is None:
            await self._write(message)
            return None
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[id] = answer
        try:
            await self._write(message)
            return await answer
        finally:
            del self._waiting[id]

    async def close(self) -> None:
        self._stdin.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), _CLOSE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # also what it has started
        await self._process.wait()
        for task in (self._reader, self._logger):
            task.cancel()
        await asyncio.gather(self._reader, self._logger, return_exceptions=True)

    async def _write(self, message: Message) -> None:
        try:
            self._stdin.write(orjson.dumps(message) + b"\n")
            await self._stdin.drain()
        except OSError:
            raise self._ended() from None

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        """Distribute answers until the process ends, or writes a line that is too long."""
        try:
            while line := await stdout.readline():
                await self._handle(line)
        except (ValueError, OSError, McpError):
            _log.warning("MCP server '%s' wrote too long a line, or was lost", self._name)
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(self._ended())

    async def _handle(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            return  # some print other lines
        if not isinstance(message, dict):
            return
        if (reply := reply_to(message)) is not None:
            await self._write(reply)
        answer = self._waiting.get(message.get("id")) if "method" not in message else None
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _log_lines(self, stderr: asyncio.StreamReader) -> None:
        with contextlib.suppress(ValueError, OSError):
            while line := await stderr.readline():
                text = line.decode(errors="replace").rstrip()[:_MAX_LOG_CHARS]
                _log.debug("MCP server '%s': %s", self._name, text)

    def _ended(self) -> McpError:
        return McpError(f"the MCP server '{self._name}' has ended")
