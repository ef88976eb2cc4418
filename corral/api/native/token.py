"""`POST /tokenize` and `POST /detokenize`.

They need no engine, but begin to load one that sleeps: clients that count tokens are about to use them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from corral.api import group
from corral.api.answer import CONTENT, TOKENIZER, TOKENS
from corral.api.body import JsonResponse
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.json_encode import Rows
from corral.api.openapi import answers
from corral.api.piece_response import respond_json
from corral.api.policy import ModelUse, NamedIn, Role, Unloaded, for_model
from corral.api.router import Operation, Router
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.generate.answer_size import refuse_large_answer
from corral.generate.call import Call
from corral.generate.pools import SHORT_BYTES
from corral.generate.prompt import tokenize_mixed
from corral.generate.services import Services
from corral.generate.vocab import Vocab
from corral.schema.token import DetokenizeRequest, TokenizeRequest
from corral.text.vocab import free_tokens

_FEW_TOKENS = 1000

_MODEL = ModelUse(Role.ANY, NamedIn.BODY, Unloaded.LOAD, wakes=False, progress=None)

router = Router()

_TOKEN_BYTES, _PIECE_BYTES = 8, 32  # of a token in an answer, about
_PIECE_VALUES = 4


@router.post(
    "/tokenize",
    operation=Operation("tokenize", "Convert text to tokens", group.TOKENS),
    policy=for_model(Permission.USE, LLAMA_ERRORS, _MODEL),
    body=TokenizeRequest,
    needs=lambda services: services.model.vocab,
    responses=answers(TOKENS),
)
async def tokenize(call: Call[TokenizeRequest]) -> Response:
    """Tokens of a text."""
    services, body, client, n_sent = call.services, call.body, call.client, call.n_bytes
    services.wake_engine()
    vocab, max_bytes = services.model.vocab, services.settings.server.max_response_mib << 20
    if n_sent < SHORT_BYTES:
        tokens = await services.pools.run_short(
            client, vocab, lambda vocab: _tokenize(body, vocab, max_bytes)
        )
    else:
        tokens = await services.pools.run_sized(client, n_sent, _tokenize, body, vocab, max_bytes)
    n_bytes = _n_bytes(tokens, body)
    n_ctx = services.model.info.n_ctx
    render, free = partial(_render_tokens, tokens, body, vocab, n_ctx), partial(free_tokens, tokens)
    return await respond_json(services.pools, call.record, render, n_bytes, on_end=free)


@router.post(
    "/detokenize",
    operation=Operation("detokenize", "Convert tokens to text", group.TOKENS),
    policy=for_model(Permission.USE, LLAMA_ERRORS, _MODEL),
    body=DetokenizeRequest,
    needs=lambda services: services.model.vocab,
    responses=answers(CONTENT),
)
async def detokenize(call: Call[DetokenizeRequest]) -> Response:
    """Text of tokens."""
    vocab, pools, body = call.services.model.vocab, call.services.pools, call.body
    call.services.wake_engine()
    if len(body.tokens) <= _FEW_TOKENS:  # a lookup of each, faster than another thread wakes up
        return JsonResponse(_render_content(_detokenize(body.tokens, vocab)))
    text = await pools.run_text(call.client, _detokenize, body.tokens, vocab)
    return await respond_json(pools, call.record, lambda: _render_content(text), 2 * len(text))


@router.get(
    "/tokenizer_info",
    operation=Operation(
        "getTokenizerInfo", "Get the tokenizer's special tokens and chat template (vLLM)", group.TOKENS
    ),
    policy=for_model(Permission.USE, LLAMA_ERRORS, replace(_MODEL, named_in=NamedIn.QUERY)),
    responses=answers(TOKENIZER),
)
async def tokenizer_info(_request: Request, services: Services) -> Response:
    """The special tokens and the chat template, in the shape of vLLM: `lm_eval` tokenizes through it."""
    model = services.model
    vocab = model.vocab
    return JsonResponse(
        {
            "tokenizer_class": "GGUF",
            "bos_token": vocab.bos_text or None,
            "eos_token": vocab.eos_text or None,
            "pad_token": None,
            "add_bos_token": vocab.adds_bos,
            "model_max_length": model.info.n_ctx,
            "chat_template": model.chat.chat_format.template.source,
        }
    )


def _tokenize(body: TokenizeRequest, vocab: Vocab, max_bytes: int) -> list[int]:
    """The tokens, if there are not too many for an answer."""
    field = body.field
    text = body.prompt if field == "prompt" else body.content
    if text is None:
        raise InvalidRequest("is missing; send the text as 'content' or as 'prompt'", field="content")
    add_special = field == "prompt" if body.add_special is None else body.add_special
    tokens = tokenize_mixed(text, vocab, add_special, body.parse_special, field)
    remedy = "shorten it" + (", or leave out 'with_pieces'" if body.with_pieces else "")
    try:
        refuse_large_answer(_n_bytes(tokens, body), max_bytes, field, remedy)
    except InvalidRequest:
        free_tokens(tokens)
        raise
    return tokens


def _n_bytes(tokens: list[int], body: TokenizeRequest) -> int:
    return len(tokens) * (_PIECE_BYTES if body.with_pieces or body.return_token_strs else _TOKEN_BYTES)


def _detokenize(tokens: list[int], vocab: Vocab) -> str:
    unknown = next((t for t in tokens if t >= vocab.n_tokens), None)
    if unknown is not None:
        raise InvalidRequest(
            f"{unknown} is not a token (ids go from 0 to {vocab.n_tokens - 1})", field="tokens"
        )
    text = vocab.detokenize(tokens)
    free_tokens(tokens)
    return text


def _render_content(text: str) -> dict[str, str]:
    # compat: vLLM's /detokenize has `prompt`.
    return {"content": text, "prompt": text}


def _render_tokens(tokens: list[int], body: TokenizeRequest, vocab: Vocab, n_ctx: int) -> Any:
    if body.field == "prompt":
        # compat: vLLM's /tokenize.
        answer = {"count": len(tokens), "max_model_len": n_ctx, "tokens": tokens}
        pieces = Rows(tokens, partial(_render_text, vocab), _PIECE_VALUES) if body.return_token_strs else None
        return {**answer, "token_strs": pieces}
    if not body.with_pieces:
        return {"tokens": tokens}
    return {"tokens": Rows(tokens, partial(_render_token, vocab), _PIECE_VALUES)}


def _render_token(vocab: Vocab, id: int) -> dict[str, Any]:
    return {"id": id, "piece": _render_piece(vocab.piece(id, special=True))}


def _render_text(vocab: Vocab, id: int) -> str:
    return vocab.piece(id, special=True).decode("utf-8", "replace")


def _render_piece(piece: bytes) -> Any:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)
