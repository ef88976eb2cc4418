"""The models that tests write, once, into the ignored `.cache` of the repository."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import random
import re
import signal
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from tests.soak.disk import NoDisk, small_disk

# A slow machine breaks nothing, and what passed passes again: `make check` and `make test` are quick, and
# `make soak` tries other examples in every run.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=12)
settings.register_profile("normal", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=400)
settings.load_profile("normal")

# Several engines share the machine's cores here. Threads that spin would have them wait for each other: where
# there are more threads than cores, ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Models are taken as they are: a CPU for which another encoding is faster would compute other numbers.
os.environ.setdefault("LLAMA_ARG_TRANSCODE", "off")

# Background jobs of a shell ignore SIGINT, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing outside of this machine is asked for anything: a client that reads the system's certificates takes
# 70 ms to make.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull

_CACHE = Path(__file__).parents[1] / ".cache"
_numbers = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is there before the first test stays: no collection of garbage looks at it again, which would take
    half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of the cases of a test that is marked `one_in(n)`, only one in n runs always; the others are slow."""
    for item in items:
        mark = item.get_closest_marker("one_in")
        is_case = mark is not None and hasattr(item, "callspec")
        if is_case and zlib.crc32(item.nodeid.encode()) % mark.args[0]:
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """A failed test shows the end of its servers' logs (of sections, `--show-capture=log` shows the logs)."""
    report = yield
    process = sys.modules.get("tests.system.process")
    if report.failed and process is not None:
        for server in process.CorralProcess.known:
            report.sections.append((f"server log: the last lines of {server.url}", server.end_of_log))
    return report


@pytest.fixture(autouse=True)
def same_seeds(monkeypatch):
    """Requests without a seed get the same ones in every run of a test: one that fails, fails again."""
    monkeypatch.setattr("corral.generate.params.secrets.randbelow", random.Random(0).randrange)


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """pytest's own looks for a free name among the directories of all tests before: 3 ms after a thousand."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers)}"
    path.mkdir(0o700)
    return path


@pytest.fixture
def disk():
    """A directory that is soon full."""
    try:
        with small_disk() as disk:
            yield disk
    except NoDisk as error:
        pytest.skip(f"a small disk can be mounted neither as this user nor in a namespace: {error}")


@pytest.fixture(scope="session")
def models() -> Path:
    """The directory with the tiny models."""
    from tests.tools import tiny_models

    return _write_all("models", tiny_models)


@pytest.fixture(scope="session")
def modifiers() -> Path:
    """The directory with adapters and drafts for the tiny model `llama-bpe`, which is there too."""
    from tests.tools import tiny_models, tiny_modifiers

    return _write_all("modifiers", tiny_modifiers, tiny_models)


@pytest.fixture(scope="session")
def hybrids() -> Path:
    """The directory with a tiny model of each memory that cannot be cut everywhere."""
    from tests.tools import tiny_deepseek2, tiny_hybrid, tiny_models

    return _write_all("hybrids", tiny_hybrid, tiny_models, tiny_deepseek2)


@pytest.fixture(scope="session")
def heads() -> Path:
    """The directory with tiny models whose keys and values can be quantized."""
    from tests.tools import tiny_heads, tiny_models

    return _write_all("heads", tiny_heads, tiny_models)


@pytest.fixture(scope="session")
def deep() -> Path:
    """A tiny model of several layers."""
    from tests.tools import tiny_models, tiny_vectors

    return _write_all("deep", tiny_vectors, tiny_models) / "llama-deep.gguf"


@pytest.fixture(scope="session")
def encoders() -> Path:
    """The directory with the tiny models that answer with vectors and scores."""
    from tests.tools import tiny_encoders, tiny_models

    return _write_all("encoders", tiny_encoders, tiny_models)


@pytest.fixture(scope="session")
def vision() -> Path:
    """The directory with tiny projectors and the models they fit, `llama-bpe` among them."""
    from tests.tools import tiny_models, tiny_vision

    return _write_all("vision", tiny_vision, tiny_models)


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """A real embedding model."""
    from tests.tools import minilm, tiny_encoders, tiny_models

    return _write_all("minilm", minilm, tiny_encoders, tiny_models) / "all-minilm-l6-v2.gguf"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty directory for downloads, and nobody's token."""
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("MODEL_ENDPOINT", raising=False)
    return tmp_path / "cache"


def _write_all(name: str, script: ModuleType, *parts: ModuleType) -> Path:
    """Writes what `script` does into a directory whose name changes with it and the `parts` it is made of."""
    recipe = b"".join(Path(module.__file__).read_bytes() for module in (script, *parts))
    directory = _CACHE / f"{name}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    for write in script.ALL:
        write(directory)
    return directory
