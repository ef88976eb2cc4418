"""One server on a tiny model with a long context, and a proxy for each client that writes its log."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.force import Force
from tests.clients.proxy import Proxy
from tests.system.process import CorralProcess
from tests.tools.tiny_long import N_CTX, llama_long

FOLDER = Path(__file__).parents[2] / ".cache" / "clients"


@pytest.fixture(scope="session")
def corral(tmp_path_factory):
    model = llama_long(tmp_path_factory.mktemp("models"))
    with CorralProcess("-m", model, "-c", 2 * N_CTX, "-np", 2, "-n", 400, "--jinja") as server:
        yield server


@pytest.fixture
def program():
    """Finds what `make clients` has installed."""

    def find(name: str) -> Path:
        path = FOLDER / name
        if not path.exists():
            pytest.skip(f"{name} is not installed: run make clients")
        return path

    return find


@pytest.fixture
def proxy(corral):
    """Opens a proxy with its log in the ignored folder."""

    @contextmanager
    def open_proxy(name: str, force: Force):
        with Proxy(corral.url, FOLDER / "logs" / f"{name}.jsonl", force).serve() as proxy:
            yield proxy

    return open_proxy
