"""The fields of `/embedding`, `/rerank`, `/classify` and of what else they are called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from corral.media.collect import MAX_MEDIA
from corral.schema.field import Flag, Text, Whole, limits
from corral.schema.nested import INPUT, INPUTS, Documents
from corral.schema.openai import ACCEPTED
from corral.schema.parse import RequestModel


class TruncateFields(RequestModel):
    model: str = Field(
        "", max_length=1024, description="Name of the model; a server with one model accepts any."
    )
    truncate: Flag = Field(False, description="Truncate inputs that are too long, instead of refusing them.")


class EmbeddingRequest(TruncateFields):
    input: Any = Field(
        None,
        description='A text, token ids, a mix of both, `{"content": [{"type": "text", "text": "..."}]}`, '
        "or a list of those.",
        json_schema_extra=INPUT,
    )
    content: Any = Field(
        None,
        description="Same as `input`, but answered in the format of `/embedding`.",
        json_schema_extra=INPUT,
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="`float`: an array of numbers; `base64`: 32-bit little-endian floats in base64."
    )
    dimensions: Annotated[int, Whole, limits(1)] | None = Field(
        None, description="Truncate vectors to the first N dimensions and renormalize them."
    )
    embd_normalize: Annotated[int, Whole, limits(-1, 1024)] | None = Field(
        None,
        description="Norm to divide vectors by: -1 none, 0 max absolute (scaled to 32760), 1 taxicab, "
        "2 euclidean, >2 p-norm. Default: `--embd-normalize`. Ignored without pooling.",
    )
    image_data: list[Any] = Field(
        default_factory=list,
        max_length=MAX_MEDIA,
        description='Images as `{"data": base64, "id": 12}`, each in the content as `[img-12]`.',
    )
    user: Text = Field("", description=ACCEPTED)


class EmbedRequest(TruncateFields):
    inputs: Any = Field(description="A text or token ids, or a list of those.", json_schema_extra=INPUTS)
    normalize: Flag = Field(True, description="Return vectors of length 1; else as the model has them.")
    dimensions: Annotated[int, Whole, limits(1)] | None = Field(
        None, description="Truncate vectors to the first N dimensions and renormalize them."
    )
    truncation_direction: Literal["left", "right", "Left", "Right"] = Field(
        "right", description="Where to truncate; only `right` is possible."
    )
    prompt_name: Text | None = Field(None, description="Refused: GGUF files have no prompts.")


class RerankRequest(TruncateFields):
    query: str = Field(description="The query to rank the documents by.")
    documents: Documents | None = Field(None, description='Texts, or objects `{"text": "..."}`.')
    texts: Documents | None = Field(
        None, description="Same as `documents`, but answered in the format of Text Embeddings Inference."
    )
    top_n: Annotated[int, Whole, limits(0)] | None = Field(
        None, description="Return only the N best documents."
    )
    return_documents: Flag = Field(False, description="Return the documents too.")
    return_text: Flag = Field(False, description="Return the texts too (with `texts`).")


class ClassifyRequest(TruncateFields):
    inputs: Any = Field(description="A text, or a list of texts.", json_schema_extra=INPUTS)
