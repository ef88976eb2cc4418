"""The fields of `POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field

from corral.schema.field import Flag, Mixed, TokenList
from corral.schema.parse import RequestModel


class TokenizeRequest(RequestModel):
    content: Mixed | None = Field(None, description="The text, or a mix of texts and token ids.")
    prompt: Mixed | None = Field(
        None, description="Same as `content`, as in vLLM: the answer has `count` and `max_model_len` too."
    )
    add_special: Flag | None = Field(
        None,
        validation_alias=AliasChoices("add_special", "add_special_tokens"),
        description="Add special tokens around the text, such as BOS. Default: false, with `prompt` true.",
    )
    parse_special: Flag = Field(
        True, description="Parse control tokens in the text, instead of treating them as text."
    )
    with_pieces: Flag = Field(
        False, description="Also return the text of each token, as bytes if it is not valid UTF-8."
    )

    return_token_strs: Flag = Field(False, description="With `prompt`, also return `token_strs`.")

    @property
    def field(self) -> str:
        """The field that the text is in."""
        return "prompt" if self.content is None and self.prompt is not None else "content"


class DetokenizeRequest(RequestModel):
    tokens: Annotated[TokenList, Field(max_length=1 << 21)] = Field(
        default_factory=list, description="Token ids."
    )
