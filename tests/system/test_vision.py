"""Images and sounds on the real command: clients, lost engines, saved states, hostile input, its options."""

from __future__ import annotations

import asyncio
import base64
import http.server
import io
import json
import random
import threading
import wave
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.system.process import START_S, CorralProcess, Stream, run_corral
from tests.system.state import act, leave, look, shell, tokens_of
from tests.tools.pictures import BLUE, RED, data_uri, noise, png

GREEDY = {"temperature": 0, "ignore_eos": True, "return_tokens": True}
N_IMAGE = 16  # tokens of every image of the llava pair
N_WINDOW = 15  # tokens of a sound for every 30 seconds


def b64(data) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else png(data)).decode()


def pictured(*pixels, prompt: str | None = None, **body: object) -> dict:
    """A request for 24 tokens behind images, numbered from 1."""
    marks = "".join(f"[img-{i}]" for i in range(1, len(pixels) + 1))
    data = [{"id": i, "data": b64(p)} for i, p in enumerate(pixels, 1)]
    prompt = f"Look: {marks} What is this?" if prompt is None else prompt
    return {"prompt": prompt, "image_data": data, "n_predict": 24, **GREEDY, **body}


def spoken(samples) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes((samples * 20000).astype("<i2").tobytes())
    return file.getvalue()


def tone(hertz: int, seconds: float) -> bytes:
    return spoken(np.sin(np.arange(int(16000 * seconds)) * 2 * np.pi * hertz / 16000))


class SeeingServer(CorralProcess):
    path: Path


@pytest.fixture(scope="module")
def llava(vision, tmp_path_factory):
    """Two slots; states and images have directories. Nothing is kept of what has left its slot."""
    path = tmp_path_factory.mktemp("llava")
    for name in ("saves", "media"):
        (path / name).mkdir()
    options = (
        "-m",
        vision / "llama-bpe.gguf",
        "--mmproj",
        vision / "mmproj-llava.gguf",
        "-c",
        16384,
        "-np",
        2,
    )
    more = ("--slots", "--slot-save-path", path / "saves", "--cache-ram", 0)
    sources = ("--media-path", path / "media", "--allow-remote-media")
    with SeeingServer(*options, *more, *sources) as server:
        server.path = path
        yield server


# --- clients


def ask(client: openai.OpenAI, pixels, **options: Any):
    parts = [
        {"type": "text", "text": "What colour is it?"},
        {"type": "image_url", "image_url": {"url": data_uri(pixels)}},
    ]
    messages: Any = [{"role": "user", "content": parts}]
    return client.chat.completions.create(
        model="any",
        messages=messages,
        max_tokens=16,
        temperature=0,
        extra_body={"ignore_eos": True},
        **options,
    )


def test_the_openai_package_shows_images(llava):
    with openai.OpenAI(base_url=f"{llava.url}/v1", api_key="none") as client:
        red, blue, again = ask(client, RED), ask(client, BLUE), ask(client, RED)
        texts = [answer.choices[0].message.content for answer in (red, blue, again)]
        assert texts[0] == texts[2] != texts[1]
        assert red.usage.prompt_tokens == blue.usage.prompt_tokens > N_IMAGE
        chunks = list(ask(client, RED, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == texts[0]
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "![](data:image/png;base64,AAAA)"}]
            )
        assert caught.value.param == "messages[0].content"
        assert "image 1: " in caught.value.message


def test_curl_and_jq_send_image_data(llava, tmp_path):
    for name, pixels in (("red", RED), ("blue", BLUE)):
        (tmp_path / f"{name}.png").write_bytes(png(pixels))
    red, blue = shell(
        llava,
        """
for colour in red blue; do
  base64 -w0 $colour.png | jq -Rs '{
    "prompt": "USER:[img-12]Describe the image in detail.\\nASSISTANT:",
    "image_data": [{"data": ., "id": 12}], "n_predict": 16, "temperature": 0, "ignore_eos": true
  }' | curl -s http://localhost:8080/completion -H 'Content-Type: application/json' -d @- |
    jq '{content, tokens_evaluated, prompt}'
done
""",
        tmp_path,
    )
    assert red["content"] != blue["content"]
    assert red["prompt"] == blue["prompt"] == "USER:Describe the image in detail.\nASSISTANT:"
    n_text = len(act(llava, "/tokenize", content=red["prompt"])["tokens"])
    assert red["tokens_evaluated"] == blue["tokens_evaluated"] >= n_text + N_IMAGE


def test_all_ways_to_send_an_image_give_one_answer(llava):
    prompt = "Look: {} What is this?"
    expected = llava.complete(**pictured(RED))
    other = {"prompt_string": prompt.format("<__media__>"), "multimodal_data": [b64(RED)]}
    assert llava.complete(**{**pictured(), "prompt": other})["tokens"] == expected["tokens"]
    text = f"a ![]({data_uri(RED)}) b"
    parts = [
        {"type": "text", "text": "a "},
        {"type": "image_url", "image_url": data_uri(RED)},
        {"type": "text", "text": " b"},
    ]
    answers = []
    for content in (text, parts, text.replace("![](", '<img src="').replace(")", '">')):
        messages = [{"role": "user", "content": content}]
        body = {"messages": messages, "max_tokens": 16, "temperature": 0}
        answer = act(llava, "/v1/chat/completions", **body)
        answers.append((answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]))
        counted = act(llava, "/v1/chat/completions/input_tokens", **body)["input_tokens"]
        assert counted == answer["usage"]["prompt_tokens"]
    assert answers == [answers[0]] * 3


def test_props_say_what_it_takes(llava):
    props = look(llava, "/props")
    assert props["modalities"] == {"vision": True, "audio": False, "video": False}


def test_the_second_turn_evaluates_no_image_again(llava):
    first = {"role": "user", "content": f"What is it? ![]({data_uri(noise(5))}) Tell me at length, please."}
    body = {"messages": [first], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = act(llava, "/v1/chat/completions", **body)
    n = answer["usage"]["prompt_tokens"]
    more = [first, answer["choices"][0]["message"], {"role": "user", "content": "And what else is there?"}]
    again = act(llava, "/v1/chat/completions", **{**body, "messages": more})
    n_behind = len(act(llava, "/tokenize", content=" Tell me at length, please.")["tokens"])
    assert again["timings"]["cache_n"] > n - n_behind
    assert again["timings"]["cache_n"] + again["timings"]["prompt_n"] == again["usage"]["prompt_tokens"]
    cold = act(llava, "/v1/chat/completions", **{**body, "messages": more, "cache_prompt": False})
    assert cold["timings"]["cache_n"] == 0
    assert cold["choices"] == again["choices"]


# --- lost engines


@pytest.mark.slow
async def test_a_stream_behind_images_goes_on_token_exact(vision):
    options = ("-m", vision / "llama-bpe.gguf", "--mmproj", vision / "mmproj-sliced.gguf", "-c", 2048)
    body = pictured(noise(1, 90, 80), RED, n_predict=1500)
    with CorralProcess(*options) as server:
        undisturbed = Stream(server.url, **body, cache_prompt=False)
        await undisturbed.task
        stream = Stream(server.url, **body, cache_prompt=False)
        await stream.reach(10)
        lost = server.engine
        lost.kill()
        await stream.task
        assert len(stream.tokens) == 1500
        assert (stream.tokens, stream.text) == (undisturbed.tokens, undisturbed.text)
        server.next_engine(lost)


def n_media_files(server: CorralProcess) -> int:
    """Of the front: what has come in and is not answered yet."""
    links = Path(f"/proc/{server.process.pid}/fd")
    names = []
    for link in links.iterdir():
        try:
            names.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return sum("corral-media" in name for name in names)


async def test_images_that_wait_for_a_slot_survive_the_engine(llava):
    expected = [llava.complete(**pictured(p))["tokens"] for p in (RED, BLUE)]
    streams = [Stream(llava.url, prompt=f"Story {i}:", n_predict=-1, **GREEDY) for i in range(2)]
    for stream in streams:
        await stream.reach(3)
    async with httpx.AsyncClient(timeout=START_S) as http:
        waiting = [
            asyncio.create_task(http.post(llava.url + "/completion", json=pictured(p))) for p in (RED, BLUE)
        ]
        while n_media_files(llava) < 2:
            await asyncio.sleep(0.01)
        lost = llava.engine
        lost.kill()
        n_before = [len(stream.events) for stream in streams]
        for stream, n in zip(streams, n_before, strict=True):
            await stream.reach(n + 3)
            await leave(stream)
        answers = [response.json() for response in await asyncio.gather(*waiting)]
    assert [answer["tokens"] for answer in answers] == expected
    llava.next_engine(lost)
    while n_media_files(llava):
        await asyncio.sleep(0.01)


# --- states


def test_a_saved_slot_with_an_image_comes_back(llava):
    body = pictured(noise(7), id_slot=0, cache_report=True)
    longer = {**body, "prompt": body["prompt"] + " And then it went on for quite a while:"}
    act(llava, "/slots/0?action=erase")
    llava.complete(**body)
    tokens = tokens_of(llava, 0)
    assert tokens.count(-1) == N_IMAGE
    saved = act(llava, "/slots/0?action=save", filename="seen")
    assert saved["n_saved"] == len(tokens)
    expected = llava.complete(**longer)
    act(llava, "/sessions/seen?action=save&slot=0")
    for slot in (0, 1):
        act(llava, f"/slots/{slot}?action=erase")
    assert act(llava, "/slots/1?action=restore", filename="seen")["n_restored"] == len(tokens)
    assert tokens_of(llava, 1) == tokens
    again = llava.complete(**{**longer, "id_slot": 1})
    assert again["tokens"] == expected["tokens"]
    assert again["timings"]["cache_n"] == expected["timings"]["cache_n"] > N_IMAGE
    for slot in (0, 1):
        act(llava, f"/slots/{slot}?action=erase")
    act(llava, "/sessions/seen?action=restore&slot=1")
    once_more = llava.complete(**{**longer, "id_slot": 1})
    assert once_more["tokens"] == expected["tokens"]
    assert once_more["timings"]["cache_n"] > N_IMAGE
    other = llava.complete(**{**pictured(noise(8)), "id_slot": 1, "cache_report": True})
    assert other["cache_report"]["first_difference"]["token"] == -1
    act(llava, "/sessions/seen?action=remove")


def test_a_saved_slot_is_of_use_without_a_projector(llava, vision):
    """What comes behind an image needs no eyes."""
    act(llava, "/slots/0?action=erase")
    llava.complete(**pictured(noise(7), id_slot=0))
    tokens = tokens_of(llava, 0)
    act(llava, "/slots/0?action=save", filename="blind")
    options = ("-m", vision / "llama-bpe.gguf", "-c", 4096, "-np", 2, "--slots")
    with CorralProcess(*options, "--slot-save-path", llava.path / "saves") as server:
        assert act(server, "/slots/0?action=restore", filename="blind")["n_restored"] == len(tokens)
        assert tokens_of(server, 0) == tokens
        assert server.complete(prompt="hello", n_predict=3, id_slot=0)["tokens_predicted"] == 3


# --- beside others


@pytest.mark.slow
async def test_a_stream_goes_on_while_a_large_image_is_encoded(vision):
    mmproj = ("--mmproj", vision / "mmproj-qwen2vl.gguf")
    with CorralProcess("-m", vision / "qwen2vl.gguf", *mmproj, "-c", 32768, "-np", 2) as server:
        stream = Stream(server.url, prompt="Once upon a time", n_predict=-1, **GREEDY)
        await stream.reach(3)
        image = Stream(server.url, **pictured(noise(1, 900, 900), n_predict=4))
        n_before = len(stream.events)
        await image.reach(1)
        n_during = len(stream.events) - n_before
        await image.task
        await leave(stream)
        assert image.events[-1]["tokens_evaluated"] > 3000
        assert n_during > 4, "the stream stood still"


# --- hostile input


def mutated(rng: random.Random) -> bytes:
    data = bytearray(png(noise(rng.randrange(99), rng.randint(1, 60), rng.randint(1, 60)), rng.choice(KINDS)))
    for _ in range(rng.randint(0, 8)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data)


KINDS = ["PNG", "JPEG", "GIF", "WEBP", "BMP"]
ODD = [None, 5, "", "x", [], {}, True, "data:image/png;base64,", {"url": 3}, "file:../x", "http://[::1"]


def hostile(rng: random.Random) -> tuple[str, dict]:
    data = b64(mutated(rng))
    uri = f"data:image/{rng.choice(['png', 'x', ''])};base64,{data}"
    odd = rng.choice(ODD)
    part = rng.choice(
        [
            {"type": "image_url", "image_url": {"url": uri}},
            {"type": "image_url", "image_url": odd},
            {"type": "input_audio", "input_audio": odd},
            {"type": "media", "text": "<__media__>"},
        ]
    )
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}
    inline = {
        "messages": [{"role": "user", "content": f"a ![]({uri}) b <img src={uri[: rng.randint(5, 60)]}>"}]
    }
    images = [{"id": rng.choice([1, 1, 1, 2, odd]), "data": rng.choice([data, data, odd])}]
    completion = {"prompt": "a [img-1] b", "image_data": images}
    media = {"prompt": {"prompt_string": "a<__media__>", "multimodal_data": [rng.choice([data, data, odd])]}}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", inline),
        ("/completion", completion),
        ("/completion", media),
        ("/embedding", {**completion, "content": "[img-1]"}),
    ]
    path, body = rng.choice(requests)
    return path, {**body, "max_tokens": 2}


async def test_nothing_that_is_shown_stops_the_engine(llava):
    rng = random.Random(11)
    engine, statuses = llava.engine, []
    async with httpx.AsyncClient(base_url=llava.url, timeout=START_S) as http:
        requests = [hostile(rng) for _ in range(60)]
        for at in range(0, len(requests), 6):
            group = requests[at : at + 6]
            answers = await asyncio.gather(*(http.post(path, json=body) for path, body in group))
            for answer, request in zip(answers, group, strict=True):
                assert answer.status_code in (200, 400), (answer.text, json.dumps(request)[:2000])
                statuses.append(answer.status_code)
    assert llava.engine.pid == engine.pid, "".join(llava.lines)
    assert statuses.count(200) > 5
    assert statuses.count(400) > 5
    assert llava.complete(**pictured(RED))["tokens_predicted"] == 24


def test_a_request_that_takes_the_system_prompt_away(vision):
    """With a grammar, the prompt is evaluated once before all others are told: its image, too."""
    options = ("-m", vision / "llama-bpe.gguf", "--mmproj", vision / "mmproj-llava.gguf", "-c", 2048)
    with CorralProcess(*options) as server:
        engine = server.engine
        server.complete(system_prompt="Be brief.", prompt="", n_predict=0)
        grammar = 'root ::= "yes" | "no"'
        answer = server.post("/completion", **pictured(RED, system_prompt="", grammar=grammar))
        assert server.engine.pid == engine.pid, "".join(server.lines)
        assert answer.status_code == 200, answer.text


# --- starting


def pair(vision: Path, *options: object) -> tuple[object, ...]:
    return ("-m", vision / "llama-bpe.gguf", "-c", 512, "-np", 1, *options)


@pytest.mark.parametrize("kind", ["a text model", "cut off", "garbage", "empty", "missing", "a directory"])
def test_a_projector_that_is_none_ends_with_a_message(refused, vision, tmp_path, kind):
    path = tmp_path / "mmproj.gguf"
    whole = (vision / "mmproj-llava.gguf").read_bytes()
    contents = {
        "cut off": whole[: len(whole) // 2],
        "garbage": random.Random(1).randbytes(5000),
        "empty": b"",
    }
    if kind in contents:
        path.write_bytes(contents[kind])
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a text model":
        path = vision / "llama-bpe.gguf"
    status, said = refused(*pair(vision, "--mmproj", path))
    assert status == 2, said
    assert str(path) in said
    assert "projector" in said or "--mmproj" in said


def test_no_mmproj_wins(vision):
    options = pair(vision, "--mmproj", vision / "mmproj-llava.gguf", "--no-mmproj", "--image", "a.png")
    with CorralProcess(*options) as server:
        assert any("--image is ignored" in line for line in server.lines)
        assert look(server, "/props")["modalities"] == {"vision": False, "audio": False, "video": False}
        answer = server.post("/completion", **pictured(RED))
        assert answer.status_code == 400
        assert "--mmproj" in answer.json()["error"]["message"]


class Shop(http.server.ThreadingHTTPServer):
    """Hands out a file, breaks off in the middle of it, or has nothing."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Counter)
        self.content = content
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Counter(http.server.BaseHTTPRequestHandler):
    server: Shop

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.content
        if "none" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        breaks_off = "flaky" in self.path and self.server.asked.count(self.path) == 1
        self.wfile.write(content[: len(content) // 2] if breaks_off else content)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.slow
def test_a_projector_is_downloaded_once_and_whole(vision, tmp_path):
    cache = tmp_path / "cache"
    env = {"LLAMA_CACHE": str(cache)}
    with Shop((vision / "mmproj-llava.gguf").read_bytes()) as shop:
        missing = run_corral(*pair(vision, "--mmproj-url", shop.url("none.gguf"), "--port", 0), **env)
        assert missing.returncode == 1
        assert "--mmproj-url" in missing.stderr
        assert "404" in missing.stderr
        assert "Traceback" not in missing.stderr
        flaky = pair(vision, "--mmproj-url", shop.url("flaky.gguf"))
        for _ in range(2):
            with CorralProcess(*flaky, env=env) as server:
                assert look(server, "/props")["modalities"]["vision"] is True
        assert shop.asked.count("/flaky.gguf") == 2
        (file,) = cache.glob("*.gguf")
        assert file.read_bytes() == shop.content


# --- images from elsewhere


def refused(server: CorralProcess, url: str) -> str:
    part = {"type": "image_url", "image_url": {"url": url}}
    messages = [{"role": "user", "content": [part]}]
    answer = server.post("/v1/chat/completions", messages=messages, max_tokens=1)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "[::ffff:127.0.0.1]", "10.0.0.1"]
)
def test_nothing_near_is_fetched(llava, host):
    with Shop(png(RED)) as shop:
        url = shop.url("a.png").replace("127.0.0.1", host)
        assert "not public" in refused(llava, url)
        assert shop.asked == []


def test_files_come_from_one_directory(llava):
    directory = llava.path / "media"
    (directory / "red.png").write_bytes(png(RED))
    (llava.path / "outside.png").write_bytes(png(RED))
    (directory / "link.png").symlink_to(directory / "red.png")
    (directory / "up").symlink_to(llava.path)
    (directory / "text.png").write_text("hello")
    expected = None
    for url in (data_uri(RED), "file:red.png", "file://red.png", f"file://{directory}/red.png"):
        part = {"type": "image_url", "image_url": {"url": url}}
        body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 12, "temperature": 0}
        answer = act(llava, "/v1/chat/completions", **body)["choices"]
        expected = expected or answer
        assert answer == expected
    for url in (
        "file:../outside.png",
        "file:%2e%2e/outside.png",
        f"file://{directory}/../outside.png",
        "file:no",
    ):
        assert "file not found under --media-path" in refused(llava, url)
    assert "not a regular file" in refused(llava, "file:link.png")
    assert "image 1: " in refused(llava, "file:up/outside.png")
    assert "image 1: " in refused(llava, "file:///etc/passwd")
    assert "not a JPEG" in refused(llava, "file:text.png")


# --- sounds


def heard(data: bytes) -> dict:
    audio = {"type": "input_audio", "input_audio": {"data": b64(data), "format": "wav"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is said?"}, audio]}]
    return {"messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def test_sounds_are_heard(vision):
    options = ("-m", vision / "llama-bpe.gguf", "--mmproj", vision / "mmproj-ultravox.gguf", "-c", 2048)
    with CorralProcess(*options) as server:
        assert look(server, "/props")["modalities"] == {"vision": False, "audio": True, "video": False}
        sounds = [tone(440, 1), spoken(np.random.default_rng(1).uniform(-1, 1, 16000)), tone(440, 1)]
        answers = [act(server, "/v1/chat/completions", **heard(sound)) for sound in sounds]
        texts = [answer["choices"][0]["message"]["content"] for answer in answers]
        assert texts[0] == texts[2] != texts[1]
        longer = act(server, "/v1/chat/completions", **heard(tone(440, 35)))
        n = [answer["usage"]["prompt_tokens"] for answer in (answers[0], longer)]
        assert n[1] - n[0] == N_WINDOW
        without = [{"role": "user", "content": "What is said?"}]
        plain = act(server, "/v1/chat/completions/input_tokens", messages=without)["input_tokens"]
        assert n[0] - plain >= N_WINDOW
        image = server.post("/completion", **pictured(RED))
        assert image.status_code == 400
        assert "does not support image input" in image.json()["error"]["message"]


# --- vectors


def vectors(server: CorralProcess) -> list[list[float]]:
    images = [{"id": 1, "data": b64(RED)}, {"id": 2, "data": b64(BLUE)}]
    inputs = ["[img-1]", "[img-2]", "a [img-1]", "[img-1]"]
    answer = act(server, "/v1/embeddings", input=inputs, image_data=images)
    assert answer["usage"]["prompt_tokens"] >= 4 * N_IMAGE
    return [entry["embedding"] for entry in answer["data"]]


def test_vectors_of_images(llava, vision):
    found = vectors(llava)
    assert found[0] == found[3]
    assert len({tuple(vector) for vector in found}) == 3
    options = pair(vision, "--mmproj", vision / "mmproj-llava.gguf", "--embeddings")
    with CorralProcess(*options) as server:
        alone = vectors(server)
        assert alone[0] == alone[3]
        assert np.allclose(np.array(alone), np.array(found), atol=1e-5)
        assert server.post("/completion", **pictured(RED)).status_code == 501
        one = act(server, "/embedding", content="Image: [img-21].", image_data=[{"id": 21, "data": b64(RED)}])
        assert len(one[0]["embedding"][0]) == len(found[0])
