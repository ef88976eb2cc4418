"""Pictures in a chat: what the second turn evaluates again, and how running streams fare meanwhile.

The projector has the size of a small real one (ViT-S/16 at 224 pixels) and random weights, in front of the
model that is measured: its answers mean nothing, their cost does.
"""

from __future__ import annotations

import asyncio
import base64
import io
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.client import complete, post
from bench.process import Corral
from bench.section import Section
from bench.setup import AS_GIVEN, MAX_ITL_MS, Setup
from corral.llama import library
from corral.llama.model import Model
from tests.tools.tiny_vision import Shape, llava

_N_TURN = 16
_OPTIONS: dict[str, Any] = {"ignore_eos": True, "seed": 1, "temperature": 0}


async def measure_media(setup: Setup, section: Section) -> None:
    path, n_picture = projector(setup.model)
    options = ("-c", 4096, "-np", 2, "--max-itl-ms", MAX_ITL_MS, "--mmproj", path)
    with closing(Corral(setup.model, *AS_GIVEN, *options)) as corral:
        n_again, speedup = await second_turn(corral.url, n_picture)
        gap = await worst_gap_ms(corral.url)
    section.at_most(f"of {n_picture} tokens of an image, evaluated in a 2nd turn", n_again, 0, "tokens")
    section.at_least("a first turn with an image over the second, prompt", speedup, 2, "x")
    section.at_most("worst gap while two images are encoded", gap, 2 * MAX_ITL_MS, "ms")


def projector(model: str) -> tuple[str, int]:
    """A projector for a model, and how many tokens a picture has."""
    library.start(verbose=False)
    opened = Model.open(model)
    shape = Shape(
        n_embd=opened.n_embd, n_width=384, n_wide=1536, n_head=6, n_block=13, image_size=224, patch_size=16
    )
    opened.close()
    path = Path(__file__).parent / "out" / f"mmproj-{shape.n_embd}.gguf"
    path.parent.mkdir(exist_ok=True)
    return str(llava(path, shape)), shape.n_tokens


def picture(seed: int, width: int = 640, height: int = 480) -> dict[str, Any]:
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((width, height)).save(file, "JPEG")
    url = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


async def second_turn(url: str, n_picture: int) -> tuple[float, float]:
    """Tokens of a picture that the second turn of a chat evaluates, and how much faster its prompt is."""
    text = {"type": "text", "text": "What do you see? Look closely, and name everything in order."}
    messages: list[dict[str, Any]] = [{"role": "user", "content": [picture(1), text]}]
    body = {"messages": messages, "max_tokens": _N_TURN, "timings_per_token": True, **_OPTIONS}
    first = await post(url, "/v1/chat/completions", body)
    messages += [first["choices"][0]["message"], {"role": "user", "content": "And what else?"}]
    second = await post(url, "/v1/chat/completions", body)
    n_evaluated = second["timings"]["prompt_n"]
    assert first["timings"]["prompt_n"] > n_picture
    # A picture is evaluated as a whole, and there are fewer tokens of text in the second turn.
    n_again = float(n_picture) if n_evaluated >= n_picture else 0.0
    return n_again, first["timings"]["prompt_ms"] / second["timings"]["prompt_ms"]


async def worst_gap_ms(url: str) -> float:
    """The longest pause of a running stream while pictures are encoded and evaluated."""
    stream = asyncio.create_task(complete(url, prompt=[1000] * 16, n_predict=600, **_OPTIONS))
    await asyncio.sleep(1.0)
    messages = [{"role": "user", "content": [picture(seed) for seed in (2, 3)]}]
    body = {"messages": messages, "max_tokens": 1, **_OPTIONS}
    pictured = await complete(url, "/v1/chat/completions", **body)
    answer = await stream
    during = [b - a for a, b in zip(answer.times, answer.times[1:], strict=False) if pictured.sent_at < b]
    assert answer.times[-1] > pictured.times[0], "the stream ended before the pictures were through"
    return 1e3 * max(during)
