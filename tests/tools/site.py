"""A web server on the loopback that answers as a test says."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

HERE = ip_address("127.0.0.1")
LATE_S = 900.0  # a deadline that no machine meets


def is_here(address):
    return address == HERE


class Site:
    """A server that answers as the test says: by path, with bytes or something that writes them."""

    def __init__(self, pages, address=HERE, tls=None):
        self.pages = pages
        self.requests = []
        self._tasks = []
        self._address = str(address)
        self._tls = tls

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, self._address, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://{self._address}:{self.port}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for _pass in range(5):  # what was accepted last becomes a task that runs
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        self._tasks.append(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            page = self.pages[head.split()[1]]
            if isinstance(page, bytes):
                writer.write(page)
                await writer.drain()
            else:
                await page(writer)
            writer.close()
            await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            writer.transport.abort()


def answer(body=b"", status=200, **headers):
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(location, status=302):
    return answer(b"elsewhere", status, Location=location)
