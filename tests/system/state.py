"""A server with a directory for slot files, and requests to its slots."""

from __future__ import annotations

import asyncio
import json
import random
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.system.process import START_S, CorralProcess, Stream

BINARY = "application/octet-stream"
GREEDY = {"temperature": 0, "ignore_eos": True, "return_tokens": True}


def act(server: CorralProcess, path: str, **body: object) -> Any:
    response = server.post(path, **body)
    assert response.status_code == 200, (path, response.text)
    return response.json()


def look(server: CorralProcess, path: str) -> Any:
    response = server.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def tokens_of(server: CorralProcess, slot: int) -> list[int]:
    answer = act(server, f"/slots/{slot}?action=tokens")
    assert answer["id_slot"] == slot
    assert answer["n_tokens"] == len(answer["tokens"])
    return answer["tokens"]


def save_state(server: CorralProcess, slot: int) -> bytes:
    response = httpx.post(
        f"{server.url}/slots/{slot}?action=save-state", headers={"Accept": BINARY}, timeout=START_S
    )
    assert response.status_code == 200, response.text
    return response.content


def restore_state(server: CorralProcess, slot: int, blob: bytes) -> httpx.Response:
    url = f"{server.url}/slots/{slot}?action=restore-state"
    return httpx.post(url, content=blob, headers={"Content-Type": BINARY}, timeout=START_S)


def prompt_of(seed: int, n: int) -> list[int]:
    """Tokens of the tiny model that no other seed begins with."""
    return random.Random(seed).choices(range(3, 256), k=n)


def inflate(blob: bytes, n: int) -> bytes:
    """A state of `n` tokens, its own over and over, in the plain form of the format: no seal at its end."""
    n_blob = struct.unpack_from("<4sI", blob)[1]
    at = 8

    def take(n_bytes: int) -> bytes:
        nonlocal at
        at += n_bytes
        return blob[at - n_bytes : at]

    def repeat(n_bytes: int) -> bytes:
        """What there is of `n_bytes` for each token."""
        return np.resize(np.frombuffer(take(n_blob * n_bytes), np.uint8), n * n_bytes).tobytes()

    parts = [b"SES1", struct.pack("<I", n), repeat(4), take(4), bytes(4)]
    take(4)
    assert struct.unpack("<II", take(8)) == (1, n_blob)
    cells = np.frombuffer(repeat(12), "<i4").reshape(n, 3).copy()
    cells[:, 0] = np.arange(n)
    is_transposed, n_layer = struct.unpack("<II", head := take(8))
    assert is_transposed
    parts += [struct.pack("<II", 1, n), cells.tobytes(), head]
    for _ in range(n_layer):
        parts += [head := take(12), repeat(struct.unpack("<iQ", head)[1])]
    for _ in range(n_layer):
        _, n_bytes, n_rows = struct.unpack("<iII", head := take(12))
        parts += [head, *(repeat(n_bytes) for _ in range(n_rows))]
    return b"".join(parts)


def lose_engine(server: CorralProcess) -> None:
    """SIGKILL, and wait for the next one."""
    lost = server.engine
    lost.kill()
    while True:
        if [e for e in server.engines if e.pid != lost.pid] and server.get("/health").status_code == 200:
            return
        time.sleep(0.02)


class StateServer(CorralProcess):
    """The tiny model with two slots, a directory for states, and no cache behind them."""

    def __init__(self, tiny: Path, path: Path, *options: object) -> None:
        kept = ("-fa", "off", "--slots", "--slot-save-path", path, "--cache-ram", 0)
        super().__init__("-m", tiny, "-np", 2, *kept, *options)
        self.path = path


async def leave(stream: Stream) -> None:
    stream.task.cancel()
    await asyncio.wait({stream.task})


def shell(server: CorralProcess, text: str, cwd: Path) -> list[Any]:
    text = text.replace("http://localhost:8080", f"http://localhost:{server.url.rpartition(':')[2]}")
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=cwd, capture_output=True, text=True, timeout=START_S
    )
    assert result.returncode == 0, result.stderr
    values, rest = [], result.stdout.strip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return values


QUESTION = prompt_of(0, 24)
