"""The fields of ollama's requests, and the shapes of its answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from corral.api.openapi import list_of, shape
from corral.media.collect import MAX_MEDIA
from corral.schema.chat import ChatRequest
from corral.schema.completion import CompletionRequest
from corral.schema.field import Flag, Real, Whole, limits
from corral.schema.nested import MESSAGES, TOOLS
from corral.schema.openai import ACCEPTED
from corral.schema.parse import RequestModel

Model = Annotated[str, Field(max_length=1024)]


KeepAlive = Annotated[int, Field(strict=True)] | Annotated[float, Real] | Annotated[str, Field(max_length=64)]


class ModelFields(RequestModel):
    model: Model = Field("", description="Name of the model; a server with one model accepts any.")
    keep_alive: KeepAlive | None = Field(
        None,
        description="How long an idle model stays loaded: seconds, or a duration such as `5m`; 0: unload it, "
        "negative: keep it. Default: `--sleep-idle-seconds`. Ignored if several API keys share the model.",
    )


class AnswerFields(ModelFields):
    stream: Flag = Field(True, description="Send tokens as they come, as lines of JSON.")
    format: str | dict[str, Any] = Field(
        "", description="`json`, or the JSON Schema that the answer follows."
    )
    options: Annotated[dict[str, Any], Field(max_length=256)] = Field(
        default_factory=dict, description="Sampling and limits, under ollama's names."
    )
    think: Flag | Literal["low", "medium", "high", "max"] | None = Field(
        None, description="Whether, or how much, to reason before the answer. Default: as the model does."
    )
    logprobs: Flag = Field(False, description="Report the probability of every token.")
    top_logprobs: Annotated[int, Whole, limits(0, 1024)] | None = Field(
        None, description="Most probable tokens to report at every position; needs `logprobs`."
    )


class OllamaChatRequest(AnswerFields):
    """Answer a conversation."""

    converted_to = (ChatRequest,)
    messages: Any = Field(
        default_factory=list,
        description="The conversation: objects with `role` and `content`, and `images` in base64. Without "
        "any, the model is only loaded.",
        json_schema_extra={**MESSAGES, "minItems": 0},
    )
    tools: Any = Field(None, description="Functions the model may call.", json_schema_extra=TOOLS)


class OllamaGenerateRequest(AnswerFields):
    """Answer a prompt."""

    converted_to = (ChatRequest, CompletionRequest)
    prompt: str = Field("", description="What the user says. Without any, the model is only loaded.")
    suffix: str = Field("", description="Write what is between the prompt and this text.")
    system: str = Field("", description="The system prompt.")
    raw: Flag = Field(False, description="Continue the prompt as it is, without a template.")
    images: Annotated[list[str], Field(max_length=MAX_MEDIA)] = Field(
        default_factory=list, description="Images in base64."
    )


class OllamaEmbedRequest(ModelFields):
    """Vectors of texts."""

    input: str | list[str] = Field(description="A text, or a list of texts.")
    truncate: Flag = Field(True, description="Cut what is too long, instead of refusing it.")
    dimensions: Annotated[int, Whole, limits(1)] | None = Field(
        None, description="Truncate vectors to this many numbers, and normalize them again."
    )
    options: Any = Field(None, description="Accepted; an embedding has none but the size of the context.")


class OllamaEmbeddingsRequest(ModelFields):
    """The vector of a text, as older clients ask for it."""

    prompt: str = Field(description="The text.")
    options: Any = Field(None, description="Accepted; an embedding has none but the size of the context.")


class OllamaShowRequest(RequestModel):
    model: Model = Field("", description="The model's name.")
    name: Model = Field("", description="Older name of `model`.")
    verbose: Flag = Field(False, description=ACCEPTED)


class OllamaPullRequest(OllamaShowRequest):
    stream: Flag = Field(True, description="Report progress as lines of JSON.")
    insecure: Flag = Field(False, description=ACCEPTED)


_TIMES = dict.fromkeys(
    ("total_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"), "integer?"
)
_END: dict[str, Any] = {"done": "boolean", "done_reason": "string?", "schema_violation": "object?", **_TIMES}
CHAT = shape(model="string", created_at="string", message="object", **_END)
GENERATE = shape(model="string", created_at="string", response="string", **_END)
_VECTOR = list_of({"type": "number"})
EMBED = shape(
    model="string",
    embeddings=list_of(_VECTOR),
    total_duration="integer",
    load_duration="integer",
    prompt_eval_count="integer",
)
EMBEDDING = shape(embedding=_VECTOR)
MODELS = shape(models=list_of(shape(name="string", model="string", size="integer", details="object")))
SHOW = shape(details="object", model_info="object", capabilities="array", template="string")
STATUS = shape(status="string")
VERSION = shape(version="string", corral_version="string")
