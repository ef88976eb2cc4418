"""Asks for answers of every kind with Outlines, as to vLLM and as to SGLang: `outlines_talk.py URL`.

Writes one JSON object a line: which server it took this for, what it asked for, and the answer.
"""

from __future__ import annotations

import json
import sys
from typing import Literal

import openai
import outlines
from outlines.types import CFG, Regex
from pydantic import BaseModel


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    rains: bool


KINDS = {
    "choice": Literal["umbrella", "hat"],
    "regex": Regex(r"[0-9]{3}/[a-c]{2}"),
    "json": City,
    "grammar": CFG('start: "rain" | "sun" " and "? "wind"'),
}
client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
for connect in (outlines.from_vllm, outlines.from_sglang):
    model = connect(client, "any")
    for kind, output_type in KINDS.items():
        answers = [model("What do I need in Paris?", output_type), "".join(model.stream("And?", output_type))]
        for answer in answers:
            sys.stdout.write(json.dumps([connect.__name__, kind, answer]) + "\n")
