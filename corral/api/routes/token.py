"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from corral.api.body import JsonResponse
from corral.api.openapi import answers, body_of
from corral.api.prepare import tokenize_mixed
from corral.api.schema.answer import CONTENT, TOKENS
from corral.api.schema.parse import parse_request
from corral.api.schema.token import DetokenizeRequest, TokenizeRequest
from corral.api.service import LARGE_BYTES, service_of
from corral.core.errors import InvalidRequest

router = APIRouter()


@router.post("/tokenize", openapi_extra=body_of(TokenizeRequest), responses=answers(TOKENS))
async def tokenize(request: Request) -> Response:
    """Tokens of a text."""
    service = service_of(request)
    vocab = service.vocab
    body, _ = parse_request(TokenizeRequest, await service.read(request))
    n_bytes = int(request.headers.get("content-length") or LARGE_BYTES)
    tokens = await service.run_in_pool(
        n_bytes, tokenize_mixed, body.content, vocab, body.add_special, body.parse_special, "content"
    )
    if body.with_pieces:
        pieces = [{"id": t, "piece": _render_piece(vocab.piece(t, special=True))} for t in tokens]
        return JsonResponse({"tokens": pieces})
    return JsonResponse({"tokens": tokens})


@router.post("/detokenize", openapi_extra=body_of(DetokenizeRequest), responses=answers(CONTENT))
async def detokenize(request: Request) -> Response:
    """Text of tokens."""
    service = service_of(request)
    vocab = service.vocab
    body, _ = parse_request(DetokenizeRequest, await service.read(request))
    unknown = next((t for t in body.tokens if t >= vocab.n_tokens), None)
    if unknown is not None:
        raise InvalidRequest(f"{unknown} is no token (ids go from 0 to {vocab.n_tokens - 1})", field="tokens")
    return JsonResponse({"content": await service.run_in_text_pool(vocab.detokenize, body.tokens)})


def _render_piece(piece: bytes) -> Any:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)
