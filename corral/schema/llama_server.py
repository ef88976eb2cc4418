"""Fields of today's llama-server besides those of `completion.py`: lazy grammars, pings, reasoning, and what
means nothing here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, Field

from corral.core.params import DRAFT_KINDS
from corral.schema.field import Flag, Text, Whole, limits
from corral.schema.parse import RequestModel

_INTERNAL = "Accepted for compatibility, ignored: the chat template decides."
_CHATS = "Accepted for compatibility, ignored: for chats only."
_NGRAM = "Accepted for compatibility, ignored: lookup drafts adapt by themselves."
Tags = Annotated[list[Text], Field(max_length=16)]


class GrammarTrigger(RequestModel):
    type: Annotated[int, Whole, limits(0, 3)] = Field(
        description="0: a token, 1: a word. Patterns (2, 3) are refused."
    )
    value: Text = Field("", description="The word.")
    token: Annotated[int, Whole, limits(-1)] = Field(-1, description="The token's id; -1: that of `value`.")


class LlamaServerFields(RequestModel):
    grammar_lazy: Flag = Field(
        False,
        description="Apply `grammar` only from the first of `grammar_triggers` on, which is part of it.",
    )
    grammar_triggers: Annotated[list[GrammarTrigger], Field(max_length=256)] = Field(
        default_factory=list, description="Words and tokens that begin a lazy grammar."
    )
    preserved_tokens: Annotated[list[Text], Field(max_length=1024)] = Field(
        default_factory=list, description="Control tokens, as texts, that appear in the answer."
    )
    sse_ping_interval: Annotated[int, Whole, limits(-1)] = Field(
        30,
        description="Seconds of silence after which a stream sends a comment; -1: never. "
        "Default: `--sse-ping-interval`.",
    )
    speculative_type: Text = Field(
        "",
        validation_alias="speculative.type",
        description=f"`none` switches drafts off; of the others ({', '.join(DRAFT_KINDS[1:])}) the server "
        "uses those it was started with.",
    )
    speculative_ngram_size_n: Any = Field(
        None, validation_alias="speculative.ngram_size_n", description=_NGRAM
    )
    speculative_ngram_size_m: Any = Field(
        None, validation_alias="speculative.ngram_size_m", description=_NGRAM
    )
    speculative_ngram_min_hits: Any = Field(
        None, validation_alias="speculative.ngram_min_hits", description=_NGRAM
    )
    reasoning_budget_tokens: Annotated[int, Whole, limits(-1)] = Field(
        -1,
        validation_alias=AliasChoices("reasoning_budget_tokens", "thinking_budget_tokens"),
        description="The most tokens of reasoning; then it is ended. -1: no limit. Default: "
        "`--reasoning-budget`.",
    )
    reasoning_budget_message: Text = Field(
        "",
        description="Text before the end tag of reasoning that is ended. Default: "
        "`--reasoning-budget-message`.",
    )
    reasoning_budget_start_tag: Text = Field(
        "", description="What begins reasoning. Default: in chats, the tag of the template."
    )
    reasoning_budget_end_tags: Text | Tags = Field(
        default_factory=list,
        validation_alias=AliasChoices("reasoning_budget_end_tags", "reasoning_budget_end_tag"),
        description="What ends reasoning; the first one is forced. Default: in chats, the tag of the "
        "template. Other routes need it for a budget.",
    )
    reasoning_control: Flag = Field(
        False, description="Let `POST /v1/chat/completions/control` end the reasoning of this answer."
    )
    generation_prompt: str = Field(
        "",
        max_length=1 << 16,
        description="The end of the prompt, which tells whether it begins with reasoning; chats know that.",
    )
    reasoning_format: Any = Field(None, description=_CHATS)
    continue_final_message: Any = Field(None, description=_CHATS)
    stream_options: Any = Field(None, description="Accepted for compatibility, ignored: see `timings`.")
    verbose: Any = Field(None, description="Accepted for compatibility, ignored: the answer has it all.")
    echo: Flag = Field(False, description="Only `/v1/completions` can begin answers with their prompts.")
    thinking_forced_open: Any = Field(None, description=_INTERNAL)
    reasoning_in_content: Any = Field(
        None, description="Accepted for compatibility, ignored: see `reasoning_format`."
    )
    chat_format: Any = Field(None, description=_INTERNAL)
    chat_parser: Any = Field(None, description=_INTERNAL)
    parse_tool_calls: Any = Field(None, description=_INTERNAL)
    grammar_type: Any = Field(None, description=_INTERNAL)
    backend_sampling: Any = Field(
        None, description="Accepted for compatibility, ignored: samplers run on the CPU."
    )

    @property
    def end_tags(self) -> list[str]:
        """The tags that end reasoning."""
        tags = self.reasoning_budget_end_tags
        return [tag for tag in ([tags] if isinstance(tags, str) else tags) if tag]
