from __future__ import annotations

import http.server
import threading

import pytest

from corral.cli import main as command
from corral.server.log import close_log
from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_bpe


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A model of random weights: fast, and nothing in it helps an answer to be right."""
    return llama_bpe(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def corral():
    """The default model with four slots. Shared by all: what a test changes in it, it changes back."""
    with CorralProcess("-c", 4096, "-np", 4, "--slots") as server:
        yield server


@pytest.fixture
def refused(monkeypatch, capsys):
    """The status of the command and what it says, for options with which it ends before it serves: in this
    process, because a start takes seconds."""
    monkeypatch.setattr(command, "run", lambda *_: pytest.fail("it serves"))

    def run(*options: object) -> tuple[int, str]:
        status = command.main([str(option) for option in ("--port", 0, *options)])
        return status, capsys.readouterr().err

    yield run
    close_log()


@pytest.fixture
def half_url():
    """A file of which one half comes, and the other one never."""
    is_over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(2 << 20))
            self.end_headers()
            self.wfile.write(b"GGUF".ljust(1 << 20, b"\0"))
            is_over.wait()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/m.gguf"
        is_over.set()
        server.shutdown()
