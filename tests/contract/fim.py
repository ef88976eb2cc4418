"""A server that infills: the fill-in-the-middle tokens of the fake vocabulary."""

from __future__ import annotations

from corral.core.fim import FimTokens
from corral.core.settings import EngineSettings, ServerSettings, Settings
from tests.contract.inline import Server
from tests.unit.fake import LETTERS, FakeBackend

PRE, SUF, MID, REP, SEP, PAD = (1 + LETTERS.index(mark) for mark in ".,;:!?")
FIM = FimTokens(PRE, SUF, MID, REP, SEP, PAD)
N_CTX = 1024


def infill_server(fim: FimTokens = FIM, n_ctx: int = N_CTX, n_batch: int = 256, **options) -> Server:
    backend = FakeBackend(n_ctx=n_ctx)
    backend.vocab.fim = fim
    engine = EngineSettings(model="fake.gguf", n_batch=n_batch)
    return Server(backend, settings=Settings(engine=engine, server=ServerSettings(**options)))
