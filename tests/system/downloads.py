"""A server that may download models, from a hub of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.system.process import CorralProcess
from tests.tools.fake_hub import FakeHub, Repository


@contextlib.contextmanager
def serve_downloads(model: Path, cache: Path) -> Iterator[CorralProcess]:
    """`user/m` and `user/old` are on the hub, with the content of one file."""
    content = model.read_bytes()
    files = {"m-Q4_K_M.gguf": content, "m-Q8_0.gguf": content}
    with FakeHub({"user/m": Repository(large=files), "user/old": Repository(large=files)}) as hub:
        env = {
            "HF_ENDPOINT": hub.url,
            "LLAMA_CACHE": str(cache),
            "HF_HOME": str(cache / "home"),
            "HF_TOKEN": "",
        }
        with CorralProcess("--models-cache", "-c", 512, env=env) as server:
            yield server
