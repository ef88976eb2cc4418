"""Fields of OpenAI, vLLM and SGLang that constrain the answer."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from corral.core.errors import InvalidRequest
from corral.schema.nested import RESPONSE_FORMAT
from corral.schema.parse import RequestModel

_HINT = "Accepted for compatibility, ignored: one engine enforces all of them."
_REFUSED = "Refused: it cannot be enforced."
_JSON: Any = {"type": ["object", "boolean", "string"]}
LongText = Annotated[str, Field(max_length=1 << 20)]
Choices = Annotated[list[LongText], Field(min_length=1, max_length=10_000)]


class GuidedFields(RequestModel):
    """At most one of these, `grammar` and `json_schema` may constrain an answer."""

    response_format: Any = Field(
        None,
        description="`text`, `json_object` (optionally with `schema`) or `json_schema`, as `{type: ...}`.",
        json_schema_extra=RESPONSE_FORMAT,
    )
    structured_outputs: dict[str, Any] | None = Field(
        None,
        max_length=32,
        description="As in vLLM: an object with one of `json`, `regex`, `choice`, `grammar` and "
        "`json_object`.",
    )
    guided_json: Any = Field(
        None, description="As in older vLLM: a JSON Schema, also as text.", json_schema_extra=_JSON
    )
    guided_regex: LongText | None = Field(
        None, description="As in older vLLM: a regular expression that the whole answer matches."
    )
    guided_choice: Choices | None = Field(None, description="As in older vLLM: the answer is one of these.")
    guided_grammar: LongText | None = Field(
        None, description="As in older vLLM: a grammar, in GBNF (`root ::= ...`) or Lark (`start: ...`)."
    )
    guided_decoding_backend: Any = Field(None, description=_HINT)
    guided_whitespace_pattern: Any = Field(None, description=_REFUSED)
    structural_tag: Any = Field(None, description=_REFUSED)
    regex: LongText | None = Field(None, description="As in SGLang: same as `guided_regex`.")
    ebnf: LongText | None = Field(None, description="As in SGLang: same as `guided_grammar`.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_packed(cls, data: Any) -> Any:
        """Refuse a format within `extra_body`, which would be ignored like all of it."""
        packed = data.get("extra_body") if isinstance(data, dict) else None
        for name in packed if isinstance(packed, dict) else ():
            if name in GuidedFields.model_fields or name in ("grammar", "json_schema"):
                raise InvalidRequest(
                    f"send '{name}' in the body itself; only OpenAI's Python client unpacks 'extra_body'",
                    field=f"extra_body.{name}",
                )
        return data
