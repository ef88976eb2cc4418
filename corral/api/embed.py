"""Compute embeddings: prepare tasks, and run them for as long as the client is connected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from starlette.responses import Response

from corral.api.body import JsonResponse
from corral.api.piece_response import LONG_BYTES, respond_json
from corral.core.chunk import FloatArray
from corral.core.errors import CorralError, InvalidRequest, NotSupported
from corral.core.pooling import Pooling
from corral.core.result import EncoderInfo, Vectors
from corral.core.task import Embed
from corral.generate.call import AnyCall
from corral.generate.disconnect import run_for_client
from corral.generate.engine import Runner
from corral.generate.pools import SHORT_BYTES
from corral.generate.prepare_embedding import Fit, Inputs
from corral.generate.vocab import Vocab
from corral.media.intake import Attached, RequestMedia
from corral.telemetry.record import RequestRecord

FLOAT_CHARS, BASE64_CHARS = 14, 6  # of a number in an answer, about
_FLOAT_BYTES = 4
_SHORT_ANSWER_BYTES = 64 << 10  # rendered faster than a thread wakes up


@dataclass(frozen=True, slots=True)
class PreparedEmbedding:
    """A task, ready to run, and the inputs that it was made of."""

    task: Embed
    media: Attached | None
    inputs: Inputs


async def prepare_embedding(
    call: AnyCall,
    truncate: bool,
    tokenize: Callable[..., Inputs],
    *content: Any,
    media: RequestMedia | None = None,
    n_chars: int = FLOAT_CHARS,
) -> PreparedEmbedding:
    """`tokenize` makes inputs of the content in a thread. `n_chars`: of a number in the answer, about."""
    context = call.services.prepare
    base = context.request_defaults(media)
    max_numbers = context.max_response_bytes // n_chars

    def run(vocab: Vocab) -> Inputs:
        own = replace(base, vocab=vocab)
        return tokenize(*content, Fit(vocab, context.model.info.encoder, truncate, own, max_numbers))

    n_sent, client = call.n_bytes, call.client
    if n_sent < SHORT_BYTES and media is None:
        inputs = await context.pools.run_short(client, base.vocab, run)
    else:
        inputs = await context.pools.run_sized(client, n_sent, run, base.vocab)
    attached = media.of(*inputs.tokens) if media is not None else None
    task = Embed(
        inputs=inputs.tokens,
        lora=context.adapters.config,
        media=attached.media if attached is not None else [],
        client=client.id,
        is_batch=client.is_batch,
    )
    return PreparedEmbedding(task, attached, inputs)


async def embed(call: AnyCall, prepared: PreparedEmbedding) -> list[FloatArray]:
    """Return the vectors of each input."""
    services = call.services
    services.admission.check_queue(call.client)
    is_per_token = services.model.info.encoder.pooling is Pooling.NONE
    work = _collect(services.runner, prepared, call.record, is_per_token)
    return await run_for_client(work, call.caller.disconnect)


async def respond(call: AnyCall, vectors: Sequence[FloatArray], render: Callable[[], Any]) -> Response:
    """Answer with what the vectors are rendered as."""
    pools = call.services.pools
    n_bytes = sum(rows.nbytes for rows in vectors) * FLOAT_CHARS // _FLOAT_BYTES
    if n_bytes >= LONG_BYTES:
        return await respond_json(pools, call.record, render, n_bytes)
    if n_bytes < _SHORT_ANSWER_BYTES:
        return JsonResponse(render())
    return await pools.run_prompt(call.client, lambda: JsonResponse(render()))


async def _collect(
    runner: Runner, prepared: PreparedEmbedding, record: RequestRecord, is_per_token: bool
) -> list[FloatArray]:
    inputs = prepared.inputs.tokens
    rows: list[FloatArray] = [np.empty((0, 0), np.float32)] * len(inputs)
    _, results = runner.submit(prepared.task, record, prepared.media)
    async for result in results:
        if isinstance(result, Vectors):
            n = len(inputs[result.index]) if is_per_token else 1
            rows[result.index] = np.frombuffer(result.data, np.float32).reshape(n, -1)
    if not np.isfinite(np.concatenate(rows)).all():
        i = next(i for i, row in enumerate(rows) if not np.isfinite(row).all())
        raise CorralError(f"the embedding of input {i} has values that are not finite")
    return rows


def require_embeddings(encoder: EncoderInfo, is_openai: bool) -> None:
    if is_openai and encoder.pooling is Pooling.NONE:
        raise InvalidRequest("Pooling type 'none' is not OAI compatible. Please use a different pooling type")
    if encoder.pooling is Pooling.RANK:
        _require_head(encoder)
        if is_openai:
            raise NotSupported(
                "This server does not support embeddings: its pooling type is 'rank'. Start it with "
                "another `--pooling`"
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
        raise NotSupported("This model cannot classify: its classification head has only one output")


def _require_head(encoder: EncoderInfo) -> None:
    if not encoder.has_head:
        raise NotSupported(
            "This model has no head for ranking or classification. Start the server with a reranker or "
            "classifier model, or without `--reranking` and `--pooling rank`"
        )
