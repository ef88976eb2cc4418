"""The fields of `/embedding`, `/rerank`, `/classify` and of what else they are called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from corral.api.schema.field import Flag, Text, Whole, limits
from corral.api.schema.nested import INPUT, INPUTS, Documents
from corral.api.schema.openai import ACCEPTED
from corral.api.schema.parse import RequestModel
from corral.media.collect import MAX_MEDIA


class TruncateFields(RequestModel):
    model: str = Field("", max_length=1024, description="Accepted for other servers' clients; one is loaded.")
    truncate: Flag = Field(False, description="Cut what is too long, instead of refusing it.")


class EmbeddingRequest(TruncateFields):
    input: Any = Field(
        None,
        description='A text, token ids, a mix of both, `{"content": [{"type": "text", "text": "..."}]}`, '
        "or a list of those.",
        json_schema_extra=INPUT,
    )
    content: Any = Field(
        None, description="The same; then the answer is that of `/embedding`.", json_schema_extra=INPUT
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Numbers, or their bytes (32 bits, little-endian) as base64."
    )
    dimensions: Annotated[int, Whole, limits(1)] | None = Field(
        None, description="Only so many numbers of each vector, which then is normalized again."
    )
    embd_normalize: Annotated[int, Whole, limits(-1, 1024)] | None = Field(
        None,
        description="Norm that vectors are divided by: -1 none, 0 largest number (to 32760), 1 taxicab, "
        "2 euclidean, more: p-norm. Default: `--embd-normalize`. Not without pooling.",
    )
    image_data: list[Any] = Field(
        default_factory=list,
        max_length=MAX_MEDIA,
        description='Images as `{"data": base64, "id": 12}`, each in the content as `[img-12]`.',
    )
    user: Text = Field("", description=ACCEPTED)


class RerankRequest(TruncateFields):
    query: str = Field(description="What the documents are to be about.")
    documents: Documents | None = Field(None, description='Texts, or objects `{"text": "..."}`.')
    texts: Documents | None = Field(
        None, description="The documents; then the answer has the shape of Text Embeddings Inference."
    )
    top_n: Annotated[int, Whole, limits(0)] | None = Field(None, description="Only the best of them.")
    return_documents: Flag = Field(False, description="With the documents themselves.")
    return_text: Flag = Field(False, description="With the texts themselves, where they came as `texts`.")


class ClassifyRequest(TruncateFields):
    inputs: Any = Field(description="A text, or a list of texts.", json_schema_extra=INPUTS)
