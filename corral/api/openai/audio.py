"""`POST /v1/audio/transcriptions`: a form with an audio clip, answered like a chat about it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from corral.api import group
from corral.api.answer import TRANSCRIPTION
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.incoming import check_admission
from corral.api.multipart import Part, read_form
from corral.api.openai.render_transcription import TranscriptionRenderer
from corral.api.openapi import EVENTS, answers, form_of
from corral.api.piece_response import respond_json
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded
from corral.api.respond import respond, run_whole
from corral.api.router import Operation, Router
from corral.core.errors import CorralError, InvalidRequest
from corral.core.key_role import Permission
from corral.core.media_item import MediaKind
from corral.generate.call import Call
from corral.generate.caller import caller_in
from corral.generate.prepare_chat import PreparedChat, prepare_chat
from corral.generate.services import Services
from corral.schema.chat import ChatRequest
from corral.schema.parse import parse_request
from corral.schema.transcription import TranscriptionRequest

_MODEL = ModelUse(Role.GENERATE, NamedIn.BODY, Unloaded.LOAD, wakes=True, progress=None)

router = Router()

_INSTRUCTION = "Transcribe audio to text"
_NUMBERS = {"temperature": float, "max_tokens": int, "seed": int}
_FLAGS = {"true": True, "false": False}
_PLAIN = ("text", "srt", "vtt")


@router.post(
    "/v1/audio/transcriptions",
    "/audio/transcriptions",
    operation=Operation("createTranscription", "Transcribe audio (OpenAI)", group.CHAT),
    policy=Policy(
        permission=Permission.GENERATE,
        errors=LLAMA_ERRORS,
        model=_MODEL,
        follow=Follow.NEVER,
        live=None,
        settles=False,
        is_batched=False,
    ),
    openapi_extra=form_of(TranscriptionRequest),
    responses=answers(TRANSCRIPTION, 501, 507, also=[EVENTS]),
)
async def transcribe(request: Request, services: Services) -> Response:
    """Transcribe an audio clip."""
    caller = msgspec.structs.replace(caller_in(request.scope), disconnect=request.receive)
    check_admission(services, caller.client)
    kind = request.headers.get("content-type", "")
    parts = await read_form(kind, request.stream(), caller.record, services)
    n_bytes = sum(len(part.data) for part in parts)
    body, chat = await services.pools.run_sized(caller.client, n_bytes, _parse, parts)
    call = Call(caller, services, chat, n_bytes)
    prepared = await _prepare(call)
    renderer = TranscriptionRenderer(body, prepared, _duration(prepared, services.model.info.sample_rate))
    if body.stream:
        return await respond(call, prepared.completion, renderer, stream=True)
    choices = await run_whole(call, prepared.completion)
    if body.response_format in _PLAIN:
        return PlainTextResponse(renderer.plain(choices[0]))
    return await respond_json(
        services.pools, call.record, lambda: renderer.answer(choices), len(choices[0].text)
    )


def _parse(parts: Sequence[Part]) -> tuple[TranscriptionRequest, ChatRequest]:
    """Return the form, and the chat that answers it."""
    fields: dict[str, Any] = {}
    for part in parts:
        if part.name == "file":
            fields["file"] = part.data
        elif part.name.endswith("[]"):
            fields.setdefault(part.name, []).append(_text(part))
        elif part.filename is None:
            fields[part.name] = _value(part)
    if not fields.get("file"):
        raise InvalidRequest("must be an audio file", field="file")
    body = parse_request(TranscriptionRequest, fields)
    if "word" in body.timestamp_granularities:
        raise InvalidRequest("the model gives no times of words", field="timestamp_granularities[]")
    if body.stream and body.response_format not in ("json", "text"):
        raise InvalidRequest(f"'{body.response_format}' cannot be streamed", field="response_format")
    return body, _chat(body)


def _chat(body: TranscriptionRequest) -> ChatRequest:
    language = f" (language: {body.language})" if body.language else ""
    audio = {"data": base64.b64encode(body.file).decode(), "format": "wav"}
    content = [
        {"type": "text", "text": (body.prompt or _INSTRUCTION) + language},
        {"type": "input_audio", "input_audio": audio},
    ]
    fields = {
        "messages": [{"role": "user", "content": content}],
        "temperature": body.temperature,
        "n_predict": body.max_tokens,
        "seed": body.seed,
        "stream": body.stream,
    }
    return parse_request(ChatRequest, fields).with_remarks_of(body, [])


def _text(part: Part) -> str:
    try:
        return part.data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("is not valid UTF-8", field=part.name[:64]) from None


def _value(part: Part) -> Any:
    """Return the value of a field: a form has only texts. An empty one counts as absent."""
    text = _text(part).strip()
    if part.name == "stream":
        return _FLAGS.get(text.lower(), text) if text else None
    if part.name not in _NUMBERS:
        return text
    try:
        return _NUMBERS[part.name](text) if text else None
    except ValueError:
        raise InvalidRequest(f"must be a number, got {text!r:.40}", field=part.name) from None


async def _prepare(call: Call[ChatRequest]) -> PreparedChat:
    try:
        return await prepare_chat(call, call.body)
    except CorralError as error:
        param = error.details.get("param", "")
        if param.startswith("messages"):  # which the client has not sent
            error.message = error.message.replace(param, "file")
            error.details["param"] = "file"
        raise


def _duration(prepared: PreparedChat, sample_rate: int) -> float:
    """Return the length of the clip in seconds."""
    task, _ = prepared.completion.tasks[0]
    n_samples = sum(item.width for item in task.media if item.kind is MediaKind.AUDIO)
    return round(n_samples / sample_rate, 3) if sample_rate else 0.0
