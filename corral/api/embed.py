"""Running prepared inputs: from token lists to vectors, for as long as the client stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fastapi import Request, Response

from corral.api.body import JsonResponse
from corral.api.disconnect import run_for_client
from corral.api.prepare_embedding import Fit, Inputs
from corral.api.service import LARGE_BYTES, Service, Vocab
from corral.core.chunk import FloatArray
from corral.core.errors import CorralError, InvalidRequest, NotSupported
from corral.core.pooling import Pooling
from corral.core.result import EncoderInfo, Vectors
from corral.core.task import Embed
from corral.media.intake import Attached
from corral.telemetry.record import RequestRecord
from corral.telemetry.scope import record_of


async def prepare(
    service: Service,
    request: Request,
    truncate: bool,
    make: Callable[..., Inputs],
    *args: Any,
    vocab: Vocab | None = None,
) -> Inputs:
    """Tokenize what is to be embedded; `words`: with what is marked in it."""
    fit = Fit(vocab or service.vocab, service.info.encoder, truncate)
    n_bytes = int(request.headers.get("content-length") or LARGE_BYTES)
    return await service.run_in_pool(n_bytes, make, *args, fit)


async def respond(service: Service, vectors: Sequence[FloatArray], render: Callable[[], Any]) -> Response:
    """Answer with what the vectors are rendered as."""
    n_bytes = sum(rows.nbytes for rows in vectors)
    return await service.run_in_pool(n_bytes, lambda: JsonResponse(render()))


async def embed(
    service: Service, request: Request, inputs: Inputs, media: Attached | None = None
) -> list[FloatArray]:
    """What each input has become: rows of numbers."""
    service.check_queue(record_of(request).client)
    return await run_for_client(_collect(service, inputs, media, record_of(request)), request.receive)


async def _collect(
    service: Service, inputs: Inputs, media: Attached | None, record: RequestRecord
) -> list[FloatArray]:
    rows: list[FloatArray] = [np.empty((0, 0), np.float32)] * len(inputs.tokens)
    per_token = service.info.encoder.pooling is Pooling.NONE
    task = Embed(
        inputs=inputs.tokens,
        lora=service.adapters.config,
        media=media.media if media is not None else [],
        client=record.client.id,
    )
    _, results = service.engine.submit(task, service.telemetry.follow(record), media)
    async for result in results:
        if isinstance(result, Vectors):
            n = len(inputs.tokens[result.index]) if per_token else 1
            rows[result.index] = np.frombuffer(result.data, np.float32).reshape(n, -1)
    if not np.isfinite(np.concatenate(rows)).all():
        i = next(i for i, row in enumerate(rows) if not np.isfinite(row).all())
        raise CorralError(f"the model's numbers for input {i} are not finite")
    return rows


def require_embeddings(encoder: EncoderInfo, is_openai: bool) -> None:
    if is_openai and encoder.pooling is Pooling.NONE:
        raise InvalidRequest("Pooling type 'none' is not OAI compatible. Please use a different pooling type")
    if encoder.pooling is Pooling.RANK:
        _require_head(encoder)
        if is_openai:
            raise NotSupported(
                "This server does not support embeddings, its pooling is 'rank'. "
                "Start it with another `--pooling`"
            )


def require_scores(encoder: EncoderInfo) -> None:
    if encoder.pooling is not Pooling.RANK:
        raise NotSupported("This server does not support reranking. Start it with `--reranking`")
    _require_head(encoder)


def require_classes(encoder: EncoderInfo) -> None:
    if encoder.pooling is not Pooling.RANK:
        raise NotSupported("This server does not support classification. Start it with `--reranking`")
    _require_head(encoder)
    if len(encoder.labels) < 2:
        raise NotSupported("This model tells no classes apart: its head has one output")


def _require_head(encoder: EncoderInfo) -> None:
    if not encoder.has_head:
        raise NotSupported(
            "This model has no head to rank or classify with. Start the server with one that has, "
            "or without `--reranking` and `--pooling rank`"
        )
