"""Two engines with a slot each: a prompt whose beginning the busy one has is not evaluated again."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.system.process import CorralProcess, Stream

OPTIONS = ["-c", 2048, "-np", 1, "--engines", 2, "-t", 1, "--slots", "--metrics"]
DOCUMENT = "This is a long document about cats and dogs. " + "It says that they sat there. " * 42


async def copy_from_a_busy_engine(server: CorralProcess) -> None:
    server.complete(prompt=DOCUMENT, n_predict=1, id_slot=0)
    body = {"prompt": DOCUMENT + "Who sat there?", "n_predict": 12, "temperature": 0, "return_tokens": True}
    stream = Stream(server.url, prompt=DOCUMENT + "Once", n_predict=-1, ignore_eos=True, id_slot=0)
    await stream.reach(2)
    copied = server.complete(**body, cache_report=True)
    stream.task.cancel()
    await asyncio.wait({stream.task})
    evaluated = server.complete(**body, cache_prompt=False, id_slot=1)
    assert copied["id_slot"] == 1
    assert copied["cache_report"]["copied_from"] == 0
    assert copied["timings"]["cache_n"] > 256
    assert evaluated["timings"]["cache_n"] == 0
    assert copied["tokens"] == evaluated["tokens"]
    assert _copies(server) == {"copied": 1, "failed": 0, "declined": 0}


def _copies(server: CorralProcess) -> dict[str, float]:
    families = text_string_to_metric_families(server.get("/metrics").text)
    (found,) = (family for family in families if family.name == "corral_state_copies")
    return {sample.labels["outcome"]: sample.value for sample in found.samples}
