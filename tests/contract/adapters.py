"""A server with two fake LoRA adapters."""

from __future__ import annotations

from corral.core.errors import InvalidRequest
from corral.core.fim import FimTokens
from corral.core.modifier import AdapterInfo, ScaledFile
from corral.engine.adapter import load_adapters
from tests.contract.fim import MID, PRE, SUF
from tests.contract.inline import Server
from tests.unit.fake import FakeAdapters, FakeBackend

PATHS = ("/models/law.gguf", "/models/style.gguf")


class Picky(FakeAdapters):
    """A file called "wrong" is none, and others say what they are for."""

    def load(self, id: int, path: str) -> AdapterInfo:
        if path.endswith("/wrong.gguf"):
            raise InvalidRequest("it is not a LoRA adapter")
        super().load(id, path)
        return AdapterInfo(id, path, task_name="to judge", prompt_prefix="Hear: ")


def adapted_server(*scales: float, applies: bool = True, encoder=None, **options) -> Server:
    """With adapters of the command line."""
    backend = FakeBackend(encoder=encoder)
    backend.adapters = Picky()
    backend.vocab.fim = FimTokens(PRE, SUF, MID)
    server = Server(backend, **options)
    files = [ScaledFile(path, scale) for path, scale in zip(PATHS, scales, strict=False)]
    server.services.adapters.open(load_adapters(backend.adapters, files), files, applies)
    server.engine._n_adapters = len(files)
    return server
