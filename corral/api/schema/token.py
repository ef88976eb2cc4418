"""The fields of `POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from corral.api.schema.field import Flag, Mixed, TokenList
from corral.api.schema.parse import RequestModel


class TokenizeRequest(RequestModel):
    content: Mixed = Field(description="The text, or a mix of texts and token ids.")
    add_special: Flag = Field(False, description="Add special tokens around the text, such as BOS.")
    parse_special: Flag = Field(
        True, description="Parse control tokens in the text, instead of treating them as text."
    )
    with_pieces: Flag = Field(
        False, description="Also return the text of each token, as bytes if it is not valid UTF-8."
    )


class DetokenizeRequest(RequestModel):
    tokens: Annotated[TokenList, Field(max_length=1 << 21)] = Field(
        default_factory=list, description="Token ids."
    )
