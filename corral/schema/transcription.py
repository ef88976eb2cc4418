"""The fields of `POST /v1/audio/transcriptions`, which come as texts of a form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from corral.schema.field import Flag, Text, bounds
from corral.schema.openai import ACCEPTED
from corral.schema.parse import RequestModel

Granularity = Literal["segment", "word"]


class TranscriptionRequest(RequestModel):
    """Transcribe an audio clip with a model that hears."""

    file: Any = Field(
        description="The audio: WAV, MP3, FLAC or Ogg.",
        json_schema_extra={"type": "string", "format": "binary"},
    )
    model: Text = Field("", description="Name of the model; a server with one model accepts any.")
    prompt: str = Field(
        "", max_length=1 << 16, description="What to do, instead of `Transcribe audio to text`."
    )
    language: Annotated[str, Field(max_length=64)] = Field("", description="The language that is spoken.")
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = Field(
        "json", description="The model gives no times: all text is one segment, as long as the clip."
    )
    temperature: Annotated[float, bounds("temperature")] = Field(0.0, description="Randomness; 0: none.")
    max_tokens: Annotated[int, bounds("n_predict")] = Field(-1, description="The most tokens; -1: no limit.")
    seed: int = Field(-1, description="Seed of the random draws.")
    stream: Flag = Field(False, description="Send the text as it comes, as events of that API.")
    timestamp_granularities: Annotated[list[Granularity], Field(max_length=2)] = Field(
        default_factory=list,
        validation_alias="timestamp_granularities[]",
        description="Times of segments; of words there are none.",
    )
    include: Any = Field(None, validation_alias="include[]", description=ACCEPTED)
    chunking_strategy: Any = Field(None, description=ACCEPTED)
