"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from corral.api.body import JsonResponse, parse_body
from corral.api.openapi import answers, body_of
from corral.api.pools import body_bytes
from corral.api.prompt import tokenize_mixed
from corral.api.schema.answer import CONTENT, TOKENS
from corral.api.schema.token import DetokenizeRequest, TokenizeRequest
from corral.api.state import state_of
from corral.api.vocab import Vocab
from corral.core.errors import InvalidRequest

router = APIRouter()


@router.post("/tokenize", openapi_extra=body_of(TokenizeRequest), responses=answers(TOKENS))
async def tokenize(request: Request) -> Response:
    """Tokens of a text."""
    vocab, pools = state_of(request).model.vocab, state_of(request).pools
    body = await parse_body(request, TokenizeRequest)
    return JsonResponse({"tokens": await pools.run_sized(body_bytes(request), _tokenize, body, vocab)})


@router.post("/detokenize", openapi_extra=body_of(DetokenizeRequest), responses=answers(CONTENT))
async def detokenize(request: Request) -> Response:
    """Text of tokens."""
    vocab, pools = state_of(request).model.vocab, state_of(request).pools
    body = await parse_body(request, DetokenizeRequest)
    unknown = next((t for t in body.tokens if t >= vocab.n_tokens), None)
    if unknown is not None:
        raise InvalidRequest(f"{unknown} is no token (ids go from 0 to {vocab.n_tokens - 1})", field="tokens")
    return JsonResponse({"content": await pools.run_text(vocab.detokenize, body.tokens)})


def _tokenize(body: TokenizeRequest, vocab: Vocab) -> list[Any]:
    tokens = tokenize_mixed(
        body.content, vocab, vocab.n_tokens, body.add_special, body.parse_special, "content"
    )
    if not body.with_pieces:
        return tokens
    return [{"id": token, "piece": _render_piece(vocab.piece(token, special=True))} for token in tokens]


def _render_piece(piece: bytes) -> Any:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)
