"""Another model file for all engines of this machine."""

from __future__ import annotations

import pytest

from tests.system.fleet_update import OPTIONS, fingerprints, update_while_streaming, write_models
from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_spm


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("update")
    llama_spm(folder)
    (folder / "damaged.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 40)
    with CorralProcess("-m", write_models(tiny, folder), *OPTIONS) as server:
        yield server


async def test_streams_end_with_the_file_they_began_with(server):
    await update_while_streaming(server)


@pytest.mark.parametrize(
    ("name", "status"),
    [("llama-spm.gguf", 409), ("damaged.gguf", 409), ("none.gguf", 404), ("../one.gguf", 400), ("..", 400)],
)
def test_other_files_are_refused(server, name, status):
    before = fingerprints(server)
    response = server.post("/engines/update", model=name)
    assert response.status_code == status
    assert status != 409 or name in response.json()["error"]["message"] or name == "llama-spm.gguf"
    assert fingerprints(server) == before
