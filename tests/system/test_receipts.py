"""`corral replay` on a real server, and on one that it starts by itself: grammars, tools and seeds."""

from __future__ import annotations

import json

from tests.system.durable import CHAT, MESSAGES, TOOL
from tests.system.process import CorralProcess, run_corral


def test_an_answer_is_evaluated_again(tiny, tmp_path):
    options = ("-m", tiny, "-c", 2048, "-np", 2, "--no-warmup", "--receipt-key", tmp_path / "key")
    limits = {"n_predict": 60, "receipt": True}
    with CorralProcess(*options) as server:
        answers = [
            server.complete(prompt="the", grammar='root ::= ("the cat sat on " [a-z]+ " and ")+', **limits),
            server.complete(prompt="hello", temperature=1.5, n=2, mirostat=2, **limits),
            server.post(CHAT, messages=MESSAGES, tools=[TOOL], tool_choice="required", **limits).json(),
        ]
        (tmp_path / "answers.json").write_text(json.dumps(answers))
        server.complete(prompt="something else", n_predict=8)
        done = run_corral("replay", tmp_path / "answers.json", "--url", server.url)
        assert (done.stdout.count("identical"), done.returncode) == (4, 0), done
    receipt = answers[0]["receipt"]
    (tmp_path / "receipt.json").write_text(json.dumps(receipt))
    again = run_corral("replay", tmp_path / "receipt.json", *options)
    assert (again.stdout, again.returncode) == (f"identical: {len(receipt['tokens'])} tokens\n", 0), again
