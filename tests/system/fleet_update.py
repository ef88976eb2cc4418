"""Another model file for all engines: answers that have begun end with the old one."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx

from corral.gguf.preflight import read_header
from tests.system.process import START_S, CorralProcess, Stream

OPTIONS = ["-c", 1024, "-np", 2, "-t", 1, "--engines", 2, "--batch-exact"]
BODY = {"prompt": "hello world", "n_predict": 300, "temperature": 0, "ignore_eos": True}


def write_models(tiny: Path, folder: Path) -> Path:
    """Write one.gguf, which is returned, and two.gguf, with other weights."""
    for name in ("one.gguf", "two.gguf"):
        shutil.copy(tiny, folder / name)
    _change_weights(folder / "two.gguf")
    return folder / "one.gguf"


def fingerprints(server: CorralProcess) -> set[str]:
    return {engine["fingerprint"] for engine in server.get("/engines").json()["engines"]}


async def update_while_streaming(server: CorralProcess) -> None:
    undisturbed = Stream(server.url, **BODY)
    await undisturbed.task
    before = fingerprints(server)
    streams = [Stream(server.url, **BODY) for _ in range(3)]
    for stream in streams:
        await stream.reach(5)
    async with httpx.AsyncClient(base_url=server.url, timeout=START_S, verify=False) as http:
        response = await http.post("/engines/update", json={"model": "two.gguf"})
    assert response.json() == {"success": True}
    for stream in streams:
        await stream.task
        assert stream.tokens == undisturbed.tokens
    after = fingerprints(server)
    assert len(before) == len(after) == 1
    assert before != after
    updated = Stream(server.url, **BODY)
    await updated.task
    assert updated.tokens != undisturbed.tokens
    assert server.get("/props").json()["model_path"].endswith("two.gguf")


def _change_weights(path: Path) -> None:
    """Exchange tensors of two layers."""
    tensors, data = read_header(path).tensors, bytearray(path.read_bytes())
    for name in ("attn_q", "attn_output", "ffn_up", "ffn_down"):
        one, other = (tensors[f"blk.{i}.{name}.weight"] for i in range(2))
        parts = [slice(each.offset, each.offset + each.n_bytes) for each in (one, other)]
        data[parts[0]], data[parts[1]] = data[parts[1]], data[parts[0]]
    path.write_bytes(data)
