"""Asks for answers of every kind with guidance, as to vLLM and as to SGLang: `guidance_talk.py URL`.

Writes one JSON object a line: which server it took this for, what it asked for, and what it captured.
"""

from __future__ import annotations

import json
import sys

from guidance import assistant, gen, select, user
from guidance import json as json_of
from guidance.models.experimental import SglangModel, VLLMModel

SCHEMA = {
    "type": "object",
    "properties": {"rains": {"type": "boolean"}},
    "required": ["rains"],
    "additionalProperties": False,
}
KINDS = {
    "choice": select(["umbrella", "hat"], name="said"),
    "regex": gen(regex=r"[0-9]{3}/[a-c]{2}", name="said"),
    "json": json_of(schema=SCHEMA, name="said"),
    "grammar": "It is " + select(["rain", "sun"]) + gen(regex=r" [0-9]{2}", name="said"),
}
for connect in (VLLMModel, SglangModel):
    for kind, grammar in KINDS.items():
        model = connect("any", base_url=f"{sys.argv[1]}/v1", api_key="none", echo=False)
        with user():
            model += "What do I need in Paris?"
        with assistant():
            model += grammar
        sys.stdout.write(json.dumps([connect.__name__, kind, model["said"]]) + "\n")
