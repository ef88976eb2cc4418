"""Images and sounds in requests: every way to send them, and every way to get it wrong."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import os
import struct
import wave
import zlib
from typing import Any

import numpy as np
import pytest

from corral.core.fim import FimTokens
from corral.core.media_item import MediaKind
from corral.core.task import Embed
from corral.generate.call import Call
from corral.generate.caller import Caller
from corral.media import intake
from corral.media.collect import MAX_MEDIA
from corral.telemetry.record import RequestRecord
from tests.contract.inline import SECONDS, Server, post
from tests.tools.pictures import data_uri, noise, png, solid
from tests.unit.fake import FakeBackend, FakeEncoder
from tests.unit.fake_projector import BROKEN, MARK, UNREADABLE, FakeProjector

DOT, SKY = solid(255, 0, 0, 8, 8), solid(0, 0, 255, 8, 8)
N_DOT = 5  # a token of text, and four of its own
WIDE, N_WIDE = solid(0, 255, 0, 32, 16), 33
TALL = solid(9, 9, 9, 8, 20)  # two runs of ten tokens
N_SOUND = 9
CHAT, COMPLETION, OPENAI = "/v1/chat/completions", "/completion", "/v1/completions"
COUNT = "/v1/chat/completions/input_tokens"


class Seeing(Server):
    """A server with a projector, which notes the prompts that reach its engine."""

    def __init__(self, projector: FakeProjector | None = None, n_ctx: int = 1024, **options) -> None:
        backend = FakeBackend(n_ctx=n_ctx, encoder=options.pop("encoder", FakeEncoder(n_batch=256)))
        self.projector = backend.projector = projector or FakeProjector()
        super().__init__(backend, slots=True, **options)

    @property
    def prompts(self) -> list[list[int]]:
        tasks = self.engine.submitted
        return [p for task in tasks for p in (task.inputs if isinstance(task, Embed) else [task.prompt])]

    @property
    def last(self) -> list[int]:
        return self.prompts[-1]


@pytest.fixture
def server():
    return Seeing()


@pytest.fixture
def hearing():
    return Seeing(FakeProjector((MediaKind.IMAGE, MediaKind.AUDIO)))


def b64(data) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else png(data)).decode()


def sound(n: int = 160) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes((np.arange(n) * 50 % 3000).astype("<i2").tobytes())
    return file.getvalue()


def image_part(url) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


def text_part(text: str) -> dict:
    return {"type": "text", "text": text}


def user(content) -> dict:
    return {"messages": [{"role": "user", "content": content}]}


def shown(pixels) -> dict:
    """A chat in which an image is between two texts."""
    return user([text_part("ab"), image_part(data_uri(pixels)), text_part("cd")])


def pictured(*pixels, prompt=None, **body) -> dict:
    """A completion in which images come one after the other, numbered from 1."""
    prompt = (
        "ab" + "".join(f"[img-{i}]" for i in range(1, len(pixels) + 1)) + "cd" if prompt is None else prompt
    )
    data = [{"id": i, "data": b64(p)} for i, p in enumerate(pixels, 1)]
    return {"prompt": prompt, "image_data": data, "n_predict": 2, "seed": 1, **body}


def with_data(prompt: str, *data: str) -> dict:
    return {"prompt": {"prompt_string": prompt, "multimodal_data": list(data)}, "n_predict": 2}


def runs_of(tokens: list[int]) -> list[tuple[int, ...]]:
    """Media among tokens, as what is between texts."""
    marks = "".join("x" if token < 0 else " " for token in tokens)
    starts = [i for i, mark in enumerate(marks) if mark == "x" and marks[:i][-1:] != "x"]
    return [tuple(tokens[s : s + len(marks[s:].split(" ")[0])]) for s in starts]


async def until(condition) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), SECONDS)


def events_of(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


# --- every way


# With `=` at its end, so that it ends there.
PADDED = f"data:image/png;base64,{b64(png(DOT) + bytes(1 + -len(png(DOT)) % 3))}"
CONTENTS: dict[str, Any] = {
    "image_url": [text_part("ab"), image_part(data_uri(DOT)), text_part("cd")],
    "image_url as a string": [text_part("ab"), {"type": "image_url", "image_url": data_uri(DOT)}, "cd"],
    "input_image": ["ab", {"type": "input_image", "image_url": data_uri(DOT)}, "cd"],
    "input_image as an object": ["ab", {"type": "input_image", "image_url": {"url": data_uri(DOT)}}, "cd"],
    "with a detail": [
        "ab",
        {"type": "image_url", "image_url": {"url": data_uri(DOT), "detail": "low"}},
        "cd",
    ],
    "markdown": f"ab![a dot]({data_uri(DOT)})cd",
    "html": f'ab<img alt="a dot" src="{data_uri(DOT)}">cd',
    "markdown in a part": [text_part(f"ab![]({data_uri(DOT)})cd")],
    "html in a string part": [f"ab<img src='{data_uri(DOT)}'/>cd"],
    "bare": f"ab{PADDED}cd",
    "bare in a part": [text_part(f"ab{PADDED}cd")],
    "another subtype": f"ab![]({data_uri(DOT).replace('image/png', 'image/webp')})cd",
    "another format": f"ab![](data:image/bmp;base64,{b64(png(DOT, 'BMP'))})cd",
    "without base64": [
        "ab",
        image_part("data:image/png," + "".join(f"%{byte:02x}" for byte in png(DOT))),
        "cd",
    ],
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
async def test_every_way_in_a_chat_is_the_same_prompt(server, content):
    plain = (await post(server, COUNT, json=user("abcd")))["input_tokens"]
    first = await post(server, CHAT, json={**shown(DOT), "max_tokens": 1})
    again = await post(server, CHAT, json={**user(content), "max_tokens": 1})
    assert server.prompts[0] == server.prompts[1]
    assert [usage["prompt_tokens"] for usage in (first["usage"], again["usage"])] == [plain + N_DOT] * 2
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, again)]
    assert cached[0] == 0
    assert cached[1] == again["timings"]["cache_n"] >= plain + N_DOT - 12
    assert len(server.projector.encoded) == 1
    assert (await post(server, COUNT, json=user(content)))["input_tokens"] == plain + N_DOT
    prompt = (await post(server, "/apply-template", json=user(content)))["prompt"]
    assert prompt == "<|im_start|>user\nab<__media__>cd<|im_end|>\n<|im_start|>assistant\n"


def ways_of(field: str) -> dict[str, dict]:
    """An image between two texts, for the routes that know `image_data`."""
    return {
        "image_data": {field: "ab[img-12]cd", "image_data": [{"data": b64(DOT), "id": 12}]},
        "a data URI": {field: "ab[img-0]cd", "image_data": [{"data": data_uri(DOT), "id": 0}]},
        "in a list": {field: ["ab[img-1]cd"], "image_data": [{"data": b64(DOT), "id": 1}]},
        "mixed with tokens": {field: [3, "b[img-1]c", 6], "image_data": [{"data": b64(DOT), "id": 1}]},
        "multimodal_data": {field: {"prompt_string": "ab<__media__>cd", "multimodal_data": [b64(DOT)]}},
        "such in a list": {field: [{"prompt_string": "ab<__media__>cd", "multimodal_data": [b64(DOT)]}]},
    }


@pytest.mark.parametrize("path", [COMPLETION, OPENAI])
@pytest.mark.parametrize("way", ways_of("prompt"))
async def test_every_way_in_a_completion_is_the_same_prompt(server, path, way):
    await post(server, path, json={**ways_of("prompt")[way], "n_predict": 1})
    (run,) = runs_of(server.last)
    assert server.last == [3, 4, MARK, *run, 5, 6]
    assert len(run) == N_DOT - 1
    await post(server, COMPLETION, json=pictured(DOT))
    assert server.last == server.prompts[0]
    assert len(server.projector.encoded) == 1


@pytest.mark.parametrize(("path", "field"), [("/embedding", "content"), ("/v1/embeddings", "input")])
@pytest.mark.parametrize("way", [*ways_of(""), "parts"])
async def test_every_way_in_an_embedding_is_the_same_prompt(server, path, field, way):
    parts = {field: {"content": [text_part("ab"), image_part(data_uri(DOT)), text_part("cd")]}}
    answer = await post(server, path, json={**ways_of(field), "parts": parts}[way])
    (run,) = runs_of(server.last)
    assert server.last == [3, 4, MARK, *run, 5, 6]
    await post(server, COMPLETION, json=pictured(DOT))
    assert server.last == server.prompts[0]
    if field == "input":
        assert answer["usage"]["prompt_tokens"] == 4 + N_DOT


@pytest.mark.parametrize("prompt", [[[3, "b[img-1]c", 6]], {"prompt_string": "ab[img-1]cd"}])
async def test_images_may_be_in_any_shape_of_a_prompt(server, prompt):
    await post(server, COMPLETION, json=pictured(DOT, prompt=prompt))
    assert len(runs_of(server.last)) == 1


async def test_all_routes_agree_on_what_an_image_is(server):
    await post(server, CHAT, json={**shown(DOT), "max_tokens": 1})
    await post(server, COMPLETION, json=pictured(DOT))
    await post(server, OPENAI, json=with_data("<__media__>", b64(DOT)))
    await post(server, "/embedding", json=pictured(DOT, prompt=None) | {"content": "ab[img-1]cd"})
    runs = [runs_of(prompt) for prompt in server.prompts]
    assert runs == [runs[0]] * 4
    await post(server, COMPLETION, json=pictured(SKY))
    assert runs_of(server.last) != runs[0]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "developer"])
async def test_any_role_may_show_an_image(server, role):
    messages = [
        {"role": "user", "content": "hi"},
        {"role": role, "content": f"ab![]({data_uri(DOT)})cd", "tool_call_id": "1"},
        {"role": "user", "content": "what"},
    ]
    await post(server, CHAT, json={"messages": messages, "max_tokens": 1})
    (run,) = runs_of(server.last)
    start = server.last.index(run[0])
    assert server.last[start - 3 : start + len(run) + 2] == [3, 4, MARK, *run, 5, 6]


async def test_several_images_keep_their_order(server):
    pictures = {name: data_uri(noise(i, 8, 8)) for i, name in enumerate("pqrs")}
    single = {}
    for name, url in pictures.items():
        await post(server, CHAT, json={**user([image_part(url)]), "max_tokens": 1})
        single[name] = runs_of(server.last)
    p, q, r, s = pictures.values()
    content = [
        text_part(f"a![]({p})b<img src={q}>c"),
        image_part(r),
        text_part("d"),
        image_part(s),
        image_part(p),
    ]
    messages = [{"role": "system", "content": f"![]({s})"}, *user(content)["messages"]]
    await post(server, CHAT, json={"messages": messages, "max_tokens": 1})
    assert runs_of(server.last) == [run for name in "spqrsp" for run in single[name]]


async def test_images_with_ids_in_any_order_and_one_twice(server):
    data = [{"id": 7, "data": b64(DOT)}, {"id": 3, "data": b64(SKY)}]
    body = {"prompt": "[img-3]a[img-7]b[img-3]", "image_data": data, "n_predict": 1}
    answer = await post(server, COMPLETION, json=body)
    sky, dot, again = runs_of(server.last)
    assert sky == again != dot
    assert answer["tokens_evaluated"] == 2 + 3 * N_DOT
    assert sorted(map(len, server.projector.encoded)) in ([2], [1, 1])


async def test_prompts_share_the_images_of_their_request(server):
    body = pictured(DOT, SKY, prompt=["a[img-1]", "b", "c[img-2][img-1]", {"prompt_string": "d"}])
    answers = await post(server, COMPLETION, json=body)
    assert [answer["tokens_evaluated"] for answer in answers] == [1 + N_DOT, 1, 1 + 2 * N_DOT, 1]
    assert [len(runs_of(prompt)) for prompt in server.prompts] == [1, 0, 2, 0]
    assert runs_of(server.prompts[2])[1] == runs_of(server.prompts[0])[0]
    assert sum(map(len, server.projector.encoded)) == 2


async def test_an_image_of_several_runs(server):
    answer = await post(server, COMPLETION, json=pictured(TALL, DOT))
    assert answer["tokens_evaluated"] == 4 + 1 + 20 + N_DOT
    rows = await post(server, "/embedding", json=pictured(TALL) | {"content": "ab[img-1]cd"})
    assert len(rows) == 1


async def test_an_image_in_a_large_body():
    server = Seeing(n_ctx=4096)
    answer = await post(server, COMPLETION, json=pictured(noise(1, 200, 160)))
    assert answer["tokens_evaluated"] == 4 + 1 + 50 * 40


async def test_an_answer_may_begin_with_an_image(server):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": f"![]({data_uri(DOT)})b"}]
    await post(server, CHAT, json={"messages": messages, "max_tokens": 1})
    (run,) = runs_of(server.last)
    assert server.last[-N_DOT:] == [*run, 4]


@pytest.mark.parametrize(
    "name", ["gemma", "llama2", "mistral-v7", "llama3", "vicuna", "smolvlm", "deepseek3"]
)
async def test_templates_of_all_kinds_show_images_of_all_roles(name):
    server = Seeing(chat_template=name)
    messages = [
        {"role": role, "content": f"a![]({data_uri(noise(i, 8, 8))})b"}
        for i, role in enumerate(["system", "user", "assistant", "user"])
    ]
    runs = []
    for message in messages:
        await post(server, CHAT, json={**user(message["content"]), "max_tokens": 1})
        runs += runs_of(server.last)
    await post(server, CHAT, json={"messages": messages, "max_tokens": 1})
    assert runs_of(server.last) == runs
    prompt = (await post(server, "/apply-template", json={"messages": messages}))["prompt"]
    assert prompt.count("a<__media__>b") == 4


async def test_an_image_that_the_template_leaves_out_is_said():
    server = Seeing(chat_template="{{ messages[-1].content }}")
    messages = [{"role": "user", "content": f"![]({data_uri(p)})"} for p in (DOT, SKY)]
    error = await post(server, CHAT, 400, json={"messages": messages})
    assert "image 1: " in error["message"]


async def test_sounds(hearing):
    audio = {"type": "input_audio", "input_audio": {"data": b64(sound()), "format": "wav"}}
    plain = (await post(hearing, COUNT, json=user("abcd")))["input_tokens"]
    first = await post(hearing, CHAT, json={**user(["ab", audio, "cd"]), "max_tokens": 1})
    assert first["usage"]["prompt_tokens"] == plain + N_SOUND
    bare = {"type": "input_audio", "input_audio": b64(sound())}
    await post(hearing, CHAT, json={**user(["ab", bare, "cd"]), "max_tokens": 1})
    assert hearing.prompts[0] == hearing.prompts[1]
    await post(hearing, COMPLETION, json=with_data("<__media__>", b64(sound())))
    assert runs_of(hearing.last) == runs_of(hearing.prompts[0])
    await post(hearing, COMPLETION, json=with_data("<__media__>", b64(sound(320))))
    assert runs_of(hearing.last) != runs_of(hearing.prompts[0])


async def test_what_data_is_tells_how_it_is_taken(hearing):
    await post(hearing, COMPLETION, json=with_data("<__media__>a<__media__>", b64(sound()), b64(DOT)))
    assert [len(run) for run in runs_of(hearing.last)] == [N_SOUND - 1, N_DOT - 1]


async def test_props_say_what_a_server_takes(server, hearing):
    answers = [(await s.http.get("/props")).json() for s in (server, hearing, Server())]
    assert [tuple(answer["modalities"].values()) for answer in answers] == [
        (True, False, False),
        (True, True, False),
        (False, False, False),
    ]
    assert {answer["media_marker"] for answer in answers} == {"<__media__>"}


# --- what stays text


@pytest.mark.parametrize(
    "text",
    [
        "a<__media__>b",
        "<__media_0123456789abcdef_0__>",
        "<__media_0__>",
        "[img-3]",
        "![a](http://example.com/a.png)",
        "<img src=a.png>",
        "data:image/png;base64,",
    ],
)
async def test_what_looks_like_an_image_stays_text(server, text):
    content = [text_part(text), image_part(data_uri(DOT))]
    n = (await post(server, COUNT, json=user("")))["input_tokens"]
    answer = await post(server, CHAT, json={**user(content), "max_tokens": 1})
    assert answer["usage"]["prompt_tokens"] == n + len(text) + N_DOT
    assert len(runs_of(server.last)) == 1
    alone = await post(server, CHAT, json={**user(text), "max_tokens": 1})
    assert alone["usage"]["prompt_tokens"] == n + len(text)


async def test_marks_of_others_stay_text_in_a_completion(server):
    text = "a<__media__>b<__media_0123456789abcdef_0__>c"
    answer = await post(server, COMPLETION, json=pictured(DOT, prompt=text + "[img-1]"))
    assert answer["tokens_evaluated"] == len(text) + N_DOT
    assert len(runs_of(server.last)) == 1


@pytest.mark.parametrize("path", [COMPLETION, OPENAI, "/embedding"])
async def test_without_a_projector_a_number_in_brackets_is_text(path):
    server = Server(FakeBackend(n_ctx=1024))
    answer = await post(server, path, json={"prompt": "a[img-3]b", "content": "a[img-3]b", "n_predict": 1})
    if path == COMPLETION:
        assert answer["tokens_evaluated"] == len("a[img-3]b")


BARE = "data:image/png;base64,"
LEFT_OUT: dict[str, Any] = {
    "not base64": f"{BARE}{'A' * 101}",
    "url-safe base64": BARE + b64(DOT).replace("=", "") + "-_-_",
    "not an image": BARE + b64(b"no picture " * 20),
    "cut short": data_uri(noise(1, 32, 32))[:400],
    "too large": BARE + b64(png(solid(1, 1, 1, 33_000, 1))),
}


@pytest.mark.parametrize("uri", LEFT_OUT.values(), ids=LEFT_OUT)
@pytest.mark.parametrize("in_part", [False, True])
async def test_a_uri_that_cannot_be_an_image_is_left_out_with_a_warning(server, uri, in_part):
    def content(text: str) -> object:
        return [text_part(text)] if in_part else text

    asked = user(content(f"ab{uri} cd{PADDED}ef"))
    answer = await post(server, CHAT, json={**asked, "max_tokens": 1})
    (warning,) = answer["warnings"]
    assert "messages[0].content" in warning
    await post(server, CHAT, json={**user(content(f"ab{BARE}... cd{PADDED}ef")), "max_tokens": 1})
    assert server.prompts[0] == server.prompts[1]
    assert len(runs_of(server.last)) == 1
    count = await post(server, COUNT, json=asked)
    assert count["input_tokens"] == answer["usage"]["prompt_tokens"]
    response = await server.http.post(CHAT, json={**asked, "max_tokens": 1, "stream": True})
    assert [event["warnings"] for event in events_of(response.text) if "warnings" in event] == [[warning]]


@pytest.mark.parametrize("part", [image_part, lambda url: f"![]({url})", lambda url: f"<img src={url}>"])
@pytest.mark.parametrize("bad", ["not base64", "not an image", "cut short"])
async def test_what_is_marked_as_an_image_has_to_be_one(server, part, bad):
    content = [part(LEFT_OUT[bad]), text_part(LEFT_OUT["not an image"])]
    assert "image 1" in (await post(server, CHAT, 400, json=user(content)))["message"]


async def test_without_a_projector_uris_in_texts_are_left_out():
    server = Server()
    text = f"ab{data_uri(DOT)} cd {data_uri(SKY)}"
    answer = await post(server, CHAT, json={**user(text), "max_tokens": 1})
    (warning,) = answer["warnings"]
    assert "--mmproj" in warning
    plain = f"ab{BARE}... cd {BARE}..."
    assert answer["usage"]["prompt_tokens"] == (await post(server, COUNT, json=user(plain)))["input_tokens"]
    assert f"user\n{plain}<" in (await post(server, "/apply-template", json=user(text)))["prompt"]
    error = await post(server, CHAT, 400, json=user([image_part(data_uri(DOT))]))
    assert "--mmproj" in error["message"]


@pytest.mark.parametrize("markup", ["![a]({})", "![a](<{}>)", '<img src="{}" alt="a">', "<IMG SRC='{}'/>"])
async def test_without_a_projector_images_in_texts_stay_text(markup):
    server = Server()
    text = f"ab {markup.format(data_uri(DOT))} cd"
    answer = await post(server, CHAT, json={**user(text), "max_tokens": 1})
    (warning,) = answer["warnings"]
    assert "--mmproj" in warning
    plain = f"ab {markup.format(f'{BARE}...')} cd"
    assert f"user\n{plain}<" in (await post(server, "/apply-template", json=user(text)))["prompt"]
    assert answer["usage"]["prompt_tokens"] == (await post(server, COUNT, json=user(plain)))["input_tokens"]


async def test_many_uris_are_told_briefly():
    server = Seeing(n_ctx=4096)
    messages = [user(f"{BARE}AAA {BARE}AAA")["messages"][0] for _ in range(30)]
    warnings = (await post(server, CHAT, json={"messages": messages, "max_tokens": 1}))["warnings"]
    assert len(warnings) == 17
    assert "28 more" in warnings[-1]


async def test_no_mark_can_be_guessed(server):
    seen, call = set(), Call(Caller(RequestRecord()), server.services, None, n_bytes=10)
    for _ in range(3):
        body, media, _ = await server.services.prepare.load_media(
            call, lambda c: c.add(MediaKind.IMAGE, data_uri(DOT), True, "x")
        )
        assert media is not None
        seen.add(body)
    assert len(seen) == 3


# --- what is refused, and what is said


def huge_png(width: int, height: int) -> bytes:
    """A picture whose header is all there is."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def uri_of(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64(data)}"


BAD_URLS: dict[str, Any] = {
    "of another type": (uri_of(b"hello", "text/plain"), "declared as 'text/plain', not as 'image/...'"),
    "of no type": ("data:,hello", "declared as 'text/plain'"),
    "a sound": (uri_of(sound(), "audio/wav"), "declared as 'audio/wav'"),
    "broken base64": ("data:image/png;base64,@@@@", "not valid base64"),
    "cut base64": ("data:image/png;base64,AAAAA", "not valid base64"),
    "no comma": ("data:image/png;base64", "a comma"),
    "empty": ("data:image/png;base64,", "is empty"),
    "cut off": (uri_of(png(noise(1))[:-90]), "damaged or truncated"),
    "no image": (uri_of(b"hello world"), "not a JPEG, PNG, GIF, WebP or BMP"),
    "svg": (uri_of(b"<svg/>", "image/svg+xml"), "not a JPEG, PNG, GIF, WebP or BMP"),
    "too wide": (uri_of(huge_png(40000, 10)), "too large: the limits are 32768 pixels per side"),
    "too large": (uri_of(huge_png(30000, 30000)), "33177600 pixels"),
    "no pixels": (uri_of(huge_png(0, 5)), ""),
    "ftp": ("ftp://example.com/a.png", "must begin with data:, http:, https: or file:"),
    "javascript": ("javascript:alert(1)", "must begin with"),
    "a path": ("/etc/passwd", "must begin with"),
    "nothing": ("", "must begin with"),
    "http": ("http://example.com/a.png", "--allow-remote-media"),
    "https": ("HTTPS://example.com/a.png", "--allow-remote-media"),
    "a file": ("file:///etc/passwd", "--media-path"),
}


@pytest.mark.parametrize(("url", "why"), BAD_URLS.values(), ids=BAD_URLS)
@pytest.mark.parametrize("path", [CHAT, COUNT])
async def test_a_bad_image_is_refused_with_its_number_and_the_reason(server, path, url, why):
    content = [image_part(data_uri(DOT)), text_part("a"), image_part(url)]
    error = await post(server, path, 400, json=user(content))
    assert "image 2: " in error["message"]
    assert why in error["message"]
    assert error["param"] == "messages[0].content[2].image_url"
    assert "Traceback" not in error["message"]
    assert not server.prompts


@pytest.mark.parametrize("markup", ["![]({})", "<img src='{}'>"])
async def test_a_bad_image_within_text_is_refused(server, markup):
    content = f"a {markup.format(data_uri(DOT))} b {markup.format('data:image/png;base64,AAAA')}"
    error = await post(server, CHAT, 400, json=user(content))
    assert "image 2: " in error["message"]
    assert error["param"] == "messages[0].content"
    error = await post(server, CHAT, 400, json=user(markup.format("data:text/html,hello")))
    assert "image 1: is declared as 'text/html'" in error["message"]


BAD_DATA: dict[str, Any] = {
    "broken base64": ("@@@@", "not valid base64"),
    "no base64": ("http://example.com/a.png", "not valid base64"),
    "empty": ("", "is empty"),
    "cut off": (b64(png(noise(1))[:-90]), "damaged or truncated"),
    "no image": (b64(b"hello world"), "not a JPEG, PNG, GIF, WebP or BMP"),
    "too large": (b64(huge_png(30000, 30000)), "too large"),
}


@pytest.mark.parametrize(("data", "why"), BAD_DATA.values(), ids=BAD_DATA)
@pytest.mark.parametrize(
    ("path", "field"),
    [(COMPLETION, "prompt"), (OPENAI, "prompt"), ("/embedding", "content"), ("/v1/embeddings", "input")],
)
async def test_bad_data_is_refused_with_its_number_and_the_reason(server, path, field, data, why):
    images = [{"id": 1, "data": b64(DOT)}, {"id": 2, "data": data}]
    error = await post(server, path, 400, json={field: "[img-1][img-2]", "image_data": images})
    assert "image 2: " in error["message"]
    assert why in error["message"]
    assert error["param"] == "image_data[1].data"
    both = {"prompt_string": "<__media__><__media__>", "multimodal_data": [b64(DOT), data]}
    error = await post(server, path, 400, json={field: [both]})
    assert "image 2: " in error["message"]
    assert why in error["message"]
    assert error["param"] == f"{field}[0].multimodal_data[1]"
    assert not server.prompts


GOOD: dict[str, Any] = {"id": 1, "data": b64(DOT)}
BAD_FIELDS: dict[str, Any] = {
    "no list": ({"image_data": "x"}, "image_data"),
    "an object": ({"image_data": GOOD}, "image_data"),
    "no objects": ({"image_data": [b64(DOT)]}, "image_data[0]"),
    "null": ({"image_data": [None]}, "image_data[0]"),
    "no id": ({"image_data": [{"data": b64(DOT)}]}, "image_data[0]"),
    "an id of another type": ({"image_data": [{**GOOD, "id": "1"}]}, "image_data[0]"),
    "an id that is a boolean": ({"image_data": [{**GOOD, "id": True}]}, "image_data[0]"),
    "a fraction": ({"image_data": [{**GOOD, "id": 1.5}]}, "image_data[0]"),
    "an id below zero": ({"image_data": [{**GOOD, "id": -1}]}, "image_data[0]"),
    "no data": ({"image_data": [{"id": 1}]}, "image_data[0].data"),
    "data of another type": ({"image_data": [{"id": 1, "data": [1, 2]}]}, "image_data[0].data"),
    "an id twice": ({"image_data": [GOOD, {**GOOD}]}, "image_data[1]"),
    "an id without data": ({"prompt": "[img-1][img-2]"}, "prompt"),
    "one in a list": ({"prompt": ["[img-1]", "[img-2]"]}, "prompt[1]"),
    "data without an id": ({"prompt": "a"}, "image_data"),
    "data without text": ({"prompt": [1, 2]}, "image_data"),
    "no data at all": ({"image_data": []}, "prompt"),
    "multimodal_data is no list": ({"prompt": {"prompt_string": "a", "multimodal_data": "x"}}, "prompt"),
    "multimodal_data alone": ({"prompt": {"multimodal_data": []}}, "prompt"),
    "data of another type there": (
        {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [5]}},
        "prompt.multimodal_data[0]",
    ),
    "more data than marks": ({"prompt": {"prompt_string": "a", "multimodal_data": [b64(DOT)]}}, "prompt"),
    "more marks than data": (
        {"prompt": {"prompt_string": "<__media__><__media__>", "multimodal_data": [b64(DOT)]}},
        "prompt",
    ),
}


@pytest.mark.parametrize(("change", "field"), BAD_FIELDS.values(), ids=BAD_FIELDS)
async def test_errors_name_the_field(server, change, field):
    body = {"prompt": "[img-1]", "image_data": [GOOD], **change}
    if isinstance(body["prompt"], dict):
        body["image_data"] = []
    assert (await post(server, COMPLETION, 400, json=body))["param"] == field
    assert not server.prompts


async def test_errors_say_which_id(server):
    for prompt, images, words in [
        ("[img-1][img-23]", [GOOD], "[img-23]"),
        ("a", [GOOD, {**GOOD, "id": 8}], "id 1"),
        ("[img-1]", [GOOD, {**GOOD, "id": 8}], "[img-8]"),
        ("[img-1]", [GOOD, GOOD], "id 1"),
    ]:
        body = {"prompt": prompt, "image_data": images}
        assert words in (await post(server, COMPLETION, 400, json=body))["message"]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url"}, ".image_url"),
        ({"type": "image_url", "image_url": None}, ".image_url"),
        ({"type": "image_url", "image_url": []}, ".image_url"),
        ({"type": "image_url", "image_url": {"url": 5}}, ".image_url"),
        ({"type": "input_image", "image_url": {}}, ".image_url"),
        ({"type": "input_image", "file_id": "file-1"}, ".image_url"),
        ({"type": "input_audio"}, ".input_audio.data"),
        ({"type": "input_audio", "input_audio": {"data": 5}}, ".input_audio.data"),
        ({"type": "media"}, ""),
        ({"type": "media", "text": "<__media__>"}, ""),
        ({"type": "image"}, ".type"),
        ({"type": ["image_url"]}, ""),
        (5, ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COUNT, "/apply-template"])
async def test_parts_of_another_shape_are_refused(hearing, path, part, param):
    error = await post(hearing, path, 400, json=user([text_part("a"), part]))
    assert error["param"] == f"messages[0].content[1]{param}"


async def test_bad_sounds(hearing):
    for data, why in [
        ("@@@", "not valid base64"),
        ("", "is empty"),
        (b64(DOT), "not WAV, FLAC, MP3 or Ogg"),
        (b64(sound(0)), "is empty"),
        (b64(sound()[:30]), "damaged or truncated"),
    ]:
        part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        error = await post(hearing, CHAT, 400, json=user([part]))
        assert "audio 1: " in error["message"]
        assert why in error["message"]
        assert error["param"] == "messages[0].content[0].input_audio.data"


@pytest.mark.parametrize("path", [CHAT, "/infill"])
async def test_numbered_images_are_for_completions_only(server, path):
    server.backend.vocab.fim = FimTokens(1, 2, 3)
    body = {**user("[img-1]"), "image_data": [GOOD], "input_prefix": "a", "input_suffix": "b"}
    error = await post(server, path, 400, json=body)
    assert error["param"] == "image_data"


async def test_too_many_images(server):
    many = user([image_part(data_uri(DOT))] * (MAX_MEDIA + 1))
    for path in (CHAT, COUNT, "/apply-template"):
        error = await post(server, path, 400, json=many)
        assert f"{MAX_MEDIA} images and audio clips" in error["message"]
        assert error["param"] == f"messages[0].content[{MAX_MEDIA}].image_url"
    data = [{"id": i, "data": b64(DOT)} for i in range(MAX_MEDIA + 1)]
    error = await post(server, COMPLETION, 400, json={"prompt": "a", "image_data": data})
    assert error["param"] == "image_data"
    error = await post(server, COMPLETION, 400, json=with_data("a", *[b64(DOT)] * (MAX_MEDIA + 1)))
    assert error["param"] == f"prompt.multimodal_data[{MAX_MEDIA}]"


async def test_as_many_images_as_allowed():
    server = Seeing(n_ctx=4096)
    await post(server, CHAT, json={**user([image_part(data_uri(DOT))] * MAX_MEDIA), "max_tokens": 1})
    assert len(server.last) > MAX_MEDIA * N_DOT
    assert sum(map(len, server.projector.encoded)) == 1


async def test_decoded_images_have_a_limit_together(server, monkeypatch):
    monkeypatch.setattr(intake, "MAX_DECODED_BYTES", 1 << 20)
    large = [data_uri(solid(i, 0, 0, 500, 500)) for i in range(2)]
    error = await post(server, CHAT, 400, json=user([image_part(url) for url in large]))
    assert "at most 1 MiB of decoded media" in error["message"]
    assert error["param"] == "messages[0].content[1].image_url"
    n = (await post(server, COUNT, json=user([image_part(large[0])] * 2)))["input_tokens"]
    assert n > 2 * 125 * 125, "one that is shown twice counts once"


async def test_a_file_has_a_limit(server, monkeypatch):
    monkeypatch.setattr(intake, "MAX_BYTES", 100)
    error = await post(server, COMPLETION, 400, json=pictured(DOT, noise(1)))
    assert "image 2: it is larger than" in error["message"]


async def test_what_the_projector_refuses_is_refused(server):
    bad = solid(1, 1, 1, UNREADABLE, 8)
    error = await post(server, CHAT, 400, json=user([image_part(data_uri(p)) for p in (DOT, bad)]))
    assert "image 2: it cannot be prepared" in error["message"]
    error = await post(server, COMPLETION, 400, json=pictured(DOT, SKY, bad))
    assert "image 3: it cannot be prepared" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_image_that_cannot_be_encoded_fails_only_its_request(server, stream):
    bad = solid(1, 1, 1, BROKEN, 8)
    error = await post(server, COMPLETION, 500, json=pictured(bad, stream=stream))
    assert "cannot be encoded" in error["message"]
    assert not server.engine.has_work
    await post(server, COMPLETION, json=pictured(DOT))


async def test_images_that_make_a_prompt_too_long():
    server = Seeing(n_ctx=256)
    large = solid(1, 2, 3, 64, 64)
    for path, body in [(COMPLETION, pictured(large)), (OPENAI, pictured(large)), (CHAT, shown(large))]:
        response = await server.http.post(path, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (400, "exceed_context_size_error")
        assert error["n_prompt_tokens"] > error["n_ctx"] == 256
    assert not server.engine.has_work
    assert (await post(server, COUNT, json=shown(large)))["input_tokens"] > 256
    await post(server, COMPLETION, json=pictured(DOT))


# --- servers that see nothing, or do not hear


NO_EYES: dict[str, Any] = {
    "image_url": (CHAT, shown(DOT)),
    "input_image": (CHAT, user([{"type": "input_image", "image_url": data_uri(DOT)}])),
    "input_audio": (CHAT, user([{"type": "input_audio", "input_audio": {"data": b64(sound())}}])),
    "input_tokens": (COUNT, shown(DOT)),
    "image_data": (COMPLETION, pictured(DOT)),
    "multimodal_data": (COMPLETION, with_data("<__media__>", b64(DOT))),
    "of OpenAI": (OPENAI, pictured(DOT)),
    "embedding": ("/embedding", {"content": "[img-1]", "image_data": [GOOD]}),
    "embedding of a part": ("/embedding", {"content": {"content": [image_part(data_uri(DOT))]}}),
    "embeddings": ("/v1/embeddings", {"input": {"prompt_string": "<__media__>", "multimodal_data": ["x"]}}),
}


@pytest.mark.parametrize(("path", "body"), NO_EYES.values(), ids=NO_EYES)
async def test_without_a_projector_the_error_names_its_option(path, body):
    error = await post(Server(FakeBackend(n_ctx=1024)), path, 400, json=body)  # clients repeat after a 5xx
    assert error["type"] == "invalid_request_error"
    assert "--mmproj" in error["message"]
    assert error["param"] in error["message"]


async def test_a_template_is_applied_without_a_projector():
    answer = await post(Server(), "/apply-template", json=shown(DOT))
    assert "ab<__media__>cd" in answer["prompt"]


async def test_audio_for_a_projector_without_ears(server):
    part = {"type": "input_audio", "input_audio": {"data": b64(sound())}}
    for path, body in [(CHAT, user([part])), (COMPLETION, with_data("<__media__>", b64(sound())))]:
        error = await post(server, path, 400, json=body)
        assert "does not support audio input" in error["message"]
        assert "--mmproj" in error["message"]


async def test_images_for_a_projector_without_eyes():
    server = Seeing(FakeProjector((MediaKind.AUDIO,)))
    bodies = [(CHAT, shown(DOT)), (COMPLETION, pictured(DOT)), (OPENAI, with_data("<__media__>", b64(DOT)))]
    for path, body in bodies:
        assert "does not support image input" in (await post(server, path, 400, json=body))["message"]


@pytest.mark.parametrize("kind", ["input_video", "video_url"])
async def test_videos_are_refused(server, kind):
    error = await post(server, CHAT, 400, json=user([{"type": kind}]))
    assert kind in error["message"]


# --- what is counted and shown


async def test_images_are_counted_like_tokens(server):
    answer = await post(server, COMPLETION, json=pictured(WIDE, ignore_eos=True))
    n = 4 + N_WIDE
    assert answer["tokens_evaluated"] == n
    assert (answer["timings"]["prompt_n"], answer["timings"]["cache_n"]) == (n, 0)
    assert answer["tokens_cached"] == n + 1
    again = await post(server, OPENAI, json=pictured(WIDE, ignore_eos=True))
    assert again["usage"]["prompt_tokens"] == n
    assert again["usage"]["total_tokens"] == n + 2
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    timings = again["timings"]
    assert (timings["cache_n"], timings["prompt_n"]) == (cached, n - cached)
    assert len(server.projector.encoded) == 1


async def test_the_second_turn_evaluates_no_image_again(server):
    first = {**shown(WIDE), "max_tokens": 4, "ignore_eos": True}
    answer = await post(server, CHAT, json=first)
    n = answer["usage"]["prompt_tokens"]
    more = [*first["messages"], answer["choices"][0]["message"], {"role": "user", "content": "and then"}]
    again = await post(server, CHAT, json={**first, "messages": more})
    end_of_image = server.last.index(runs_of(server.last)[0][-1]) + 1
    assert end_of_image < again["timings"]["cache_n"] <= n + 4
    assert len(server.projector.encoded) == 1


async def test_answers_and_slots_show_the_text_only(server):
    answer = await post(server, COMPLETION, json=pictured(DOT, TALL, return_tokens=True))
    text = server.backend.vocab.detokenize([3, 4, MARK, MARK, 5, 6])
    assert answer["prompt"] == text
    slots = (await server.http.get("/slots")).json()
    assert slots[answer["id_slot"]]["prompt"] == text
    n_held = answer["tokens_evaluated"] + answer["tokens_predicted"] - 1
    assert slots[answer["id_slot"]]["n_prompt_tokens"] == n_held
    assert "<__media" not in json.dumps([answer, slots])
    openai = await post(server, OPENAI, json=pictured(DOT, TALL, verbose=True))
    assert openai["__verbose"]["prompt"] == text


async def test_the_tokens_of_a_slot_tell_nothing_of_an_image(server):
    answer = await post(server, COMPLETION, json=pictured(DOT))
    tokens = (await post(server, f"/slots/{answer['id_slot']}?action=tokens"))["tokens"]
    assert tokens[:9] == [3, 4, MARK, -1, -1, -1, -1, 5, 6]
    error = await post(server, COMPLETION, 400, json={"prompt": tokens})
    assert "-1" in error["message"]


async def test_a_cache_report_tells_of_a_difference_within_an_image(server):
    other = WIDE.copy()
    other[0, 0] = 7
    await post(server, COMPLETION, json=pictured(WIDE))
    report = (await post(server, COMPLETION, json=pictured(other, cache_report=True)))["cache_report"]
    assert report["n_common"] == 3
    assert report["n_prompt"] == 4 + N_WIDE
    assert report["first_difference"] == {
        "index": 3,
        "token": -1,
        "text": None,
        "cached_token": -1,
        "cached_text": None,
    }
    report = (
        await post(server, COMPLETION, json={"prompt": "abeeee", "cache_report": True, "n_predict": 1})
    )["cache_report"]
    assert report["first_difference"]["cached_token"] == -1
    assert report["first_difference"]["text"] == "e"


async def test_a_prompt_goes_on_behind_the_image_it_shares(server):
    await post(server, COMPLETION, json=pictured(WIDE, prompt="abababab[img-1]" + "c" * 20))
    body = pictured(WIDE, prompt="abababab[img-1]" + "d" * 20, cache_report=True)
    report = (await post(server, COMPLETION, json=body))["cache_report"]
    assert report["n_common"] == 8 + N_WIDE
    assert report["n_cached"] >= 8 + N_WIDE - 4


async def test_streams_say_the_same(server):
    for path, body in [
        (COMPLETION, pictured(DOT, n_predict=12)),
        (CHAT, {**shown(DOT), "seed": 1, "max_tokens": 12, "stream_options": {"include_usage": True}}),
    ]:
        whole = await post(server, path, json={k: v for k, v in body.items() if k != "stream_options"})
        response = await server.http.post(path, json={**body, "stream": True})
        events = events_of(response.text)
        if path == COMPLETION:
            assert "".join(event["content"] for event in events) == whole["content"]
            assert events[-1]["tokens_evaluated"] == whole["tokens_evaluated"]
        else:
            deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
            text = "".join(delta.get("content") or "" for delta in deltas)
            assert text == (whole["choices"][0]["message"]["content"] or "")
            assert events[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert len(server.projector.encoded) == 1


async def test_errors_come_before_a_stream_begins(server):
    error = await post(server, CHAT, 400, json={**user([image_part("data:image/png,x")]), "stream": True})
    assert "image 1: " in error["message"]


async def test_progress_counts_images(server):
    body = pictured(WIDE, stream=True, return_progress=True)
    events = events_of((await server.http.post(COMPLETION, json=body)).text)
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert {one["total"] for one in progress} == {4 + N_WIDE}
    assert progress[-1]["processed"] == 4 + N_WIDE


async def test_several_answers_share_one_encoding(server):
    answer = await post(server, CHAT, json={**shown(WIDE), "n": 3, "max_tokens": 4, "cache_prompt": False})
    assert len(answer["choices"]) == 3
    assert server.projector.encoded[0]
    assert sum(map(len, server.projector.encoded)) == 1
    answers = await post(server, COMPLETION, json=pictured(SKY, n=3))
    assert len(answers) == 3
    assert sum(map(len, server.projector.encoded)) == 2


async def test_requests_at_once_share_one_encoding(server):
    bodies = [pictured(WIDE, prompt=f"{letter}[img-1]") for letter in "abc"]
    await asyncio.gather(*(post(server, COMPLETION, json=body) for body in bodies))
    assert sum(map(len, server.projector.encoded)) == 1


async def test_tools_and_images(server):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    body = {**shown(DOT), "tools": [tool], "max_tokens": 2}
    n = (await post(server, COUNT, json={**body, **user("abcd")}))["input_tokens"]
    answer = await post(server, CHAT, json=body)
    assert answer["usage"]["prompt_tokens"] == n + N_DOT
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        *body["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [text_part("see"), image_part(data_uri(SKY))]},
    ]
    await post(server, CHAT, json={**body, "messages": messages})
    dot, sky = runs_of(server.last)
    assert dot == runs_of(server.prompts[0])[0] != sky


async def test_an_answer_in_a_grammar(server):
    answer = await post(server, COMPLETION, json=pictured(DOT, grammar="hello", n_predict=9))
    assert answer["content"] == "hello"


async def test_images_behind_a_system_prompt(server):
    await post(server, COMPLETION, json={"system_prompt": {"prompt": "zz"}, "prompt": "", "n_predict": 0})
    answer = await post(server, COMPLETION, json=pictured(DOT))
    assert len(runs_of(server.last)) == 1
    assert server.backend.vocab.detokenize([3, 4, MARK, 5, 6]) == answer["prompt"]


async def test_a_system_prompt_is_taken_away_by_a_request_with_a_grammar_and_an_image(server):
    await post(server, COMPLETION, json={"system_prompt": {"prompt": "zz"}, "prompt": "", "n_predict": 0})
    body = pictured(DOT, system_prompt={"prompt": ""}, grammar="hello", n_predict=9)
    assert (await post(server, COMPLETION, json=body))["content"] == "hello"


async def test_images_and_guidance(server):
    body = pictured(WIDE, cfg_scale=2.0, cfg_negative_prompt="no", n_predict=4)
    assert (await post(server, COMPLETION, json=body))["tokens_evaluated"] == 4 + N_WIDE


# --- vectors


async def test_vectors_of_images():
    server = Seeing(encoder=FakeEncoder(n_batch=256))
    data = [{"id": 1, "data": b64(DOT)}, {"id": 2, "data": b64(SKY)}]
    inputs = ["[img-1]", "[img-2]", "a[img-1]", "[img-1]", "ab"]
    answer = await post(server, "/v1/embeddings", json={"input": inputs, "image_data": data})
    vectors = [entry["embedding"] for entry in answer["data"]]
    assert vectors[0] == vectors[3]
    assert len({tuple(vector) for vector in vectors}) == 4
    assert answer["usage"]["prompt_tokens"] == 4 * N_DOT + 3
    alone = await post(server, "/v1/embeddings", json={"input": "[img-2]", "image_data": data[1:]})
    assert alone["data"][0]["embedding"] == vectors[1]
    assert sum(map(len, server.projector.encoded)) <= 3


async def test_an_input_that_is_too_long_with_its_image():
    server = Seeing(encoder=FakeEncoder(n_tokens=20))
    body = {"input": "ab[img-1]", "image_data": [{"id": 1, "data": b64(WIDE)}]}
    error = await post(server, "/v1/embeddings", 400, json=body)
    assert error["n_prompt_tokens"] == 2 + N_WIDE
    answer = await post(server, "/v1/embeddings", json={**body, "truncate": True})
    assert answer["usage"]["prompt_tokens"] == 3, "a part of an image is none"


async def test_an_input_that_is_cut_within_an_image_of_several_runs():
    server = Seeing(encoder=FakeEncoder(n_tokens=20))
    body = {"input": "ab[img-1]", "image_data": [{"id": 1, "data": b64(TALL)}], "truncate": True}
    answer = await post(server, "/v1/embeddings", json=body)
    assert answer["usage"]["prompt_tokens"] <= 20


# --- clients that leave, and what they leave behind


@pytest.mark.parametrize(("path", "stream"), [(COMPLETION, False), (COMPLETION, True), ("/embedding", False)])
async def test_a_client_that_leaves_during_encoding_leaves_nothing_behind(server, path, stream):
    server.projector.gate.clear()
    body = pictured(DOT, n_predict=-1, ignore_eos=True, stream=stream) | {"content": "[img-1]"}
    request = asyncio.create_task(server.http.post(path, json=body))
    await until(lambda: server.projector.encoded)
    request.cancel()
    await until(lambda: server.engine.n_tasks == 0)
    server.projector.gate.set()
    await until(lambda: server.projector.n_stopped == 1)
    await until(lambda: not server.engine.has_work)
    assert server.engine.telemetry.slots.n_idle == 4
    await post(server, COMPLETION, json=pictured(DOT))


async def test_others_go_on_while_an_image_is_encoded(server):
    server.projector.gate.clear()
    seeing = asyncio.create_task(post(server, COMPLETION, json=pictured(DOT)))
    await until(lambda: server.projector.encoded)
    answer = await post(server, COMPLETION, json={"prompt": "ab", "n_predict": 20, "ignore_eos": True})
    assert answer["tokens_predicted"] == 20
    assert not seeing.done()
    server.projector.gate.set()
    assert (await seeing)["tokens_evaluated"] == 4 + N_DOT


def n_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def test_no_file_stays_open(hearing):
    bad = solid(1, 1, 1, BROKEN, 8)
    unlucky = solid(1, 1, 1, UNREADABLE, 8)
    requests = [
        (COMPLETION, pictured(DOT, n=2), 200),
        (CHAT, shown(SKY), 200),
        (CHAT, user([{"type": "input_audio", "input_audio": {"data": b64(sound())}}]), 200),
        ("/embedding", {"content": "[img-1]", "image_data": [GOOD]}, 200),
        (COMPLETION, pictured(DOT, prompt=["[img-1]", "b[img-1]", "c"]), 200),
        (COMPLETION, pictured(bad), 500),
        (COMPLETION, pictured(DOT, unlucky), 400),
        (CHAT, user([image_part(data_uri(DOT)), image_part("data:image/png,x")]), 400),
        (COMPLETION, pictured(solid(1, 2, 3, 200, 200)), 400),
        (COMPLETION, pictured(DOT, id_slot=77), 400),
    ]

    async def send() -> None:
        for path, body, status in requests:
            await post(hearing, path, status, json={"max_tokens": 2, **body})

    await send()
    n = n_files()
    for _ in range(5):
        await send()
    await until(lambda: not hearing.engine.has_work)
    assert n_files() == n


async def test_a_client_that_leaves_leaves_no_file_open(server):
    await post(server, COMPLETION, json=pictured(DOT))
    n = n_files()
    server.projector.gate.clear()
    for i in range(5):
        request = asyncio.create_task(server.http.post(COMPLETION, json=pictured(noise(i, 8, 8))))
        await until(lambda: server.engine.n_tasks == 1)
        request.cancel()
        await asyncio.wait({request})
    server.projector.gate.set()
    await post(server, COMPLETION, json=pictured(DOT))
    await until(lambda: not server.engine.has_work)
    del request
    assert n_files() == n


# --- what clients can find out


async def test_models_tell_whether_they_see(server):
    for path in ("/v1/models", "/models"):
        (model,) = (await server.http.get(path)).json()["models"]
        assert (model["name"], model["capabilities"]) == ("fake.gguf", ["completion", "multimodal"])
    (model,) = (await Server().http.get("/v1/models")).json()["models"]
    assert model["capabilities"] == ["completion"]
