"""`/completion.js`, in Chromium and in Node, against the real server; and the page that llama-server's manual
shows with it."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.browser.script import in_chromium, in_node
from tests.system.process import CorralProcess

KEY = "sk-Schlüssel-🗝"
PROMPT = "The capital of France is"
FIXED = {"n_predict": 12, "temperature": 0, "seed": 1, "ignore_eos": True, "stop": []}
ENDLESS = {"n_predict": -1, "ignore_eos": True, "stop": []}
# Instead of `fetch`: what was sent is in `sent`, what comes back is said by each test.
FAKE = """
const sent = [];
globalThis.fetch = async (url, options = {}) => { sent.push({ url, ...options }); return answer(); };
const streamed = (pieces) => new Response(
  new ReadableStream({ start(it) { pieces.forEach((piece) => it.enqueue(piece)); it.close(); } }),
  { headers: { 'Content-Type': 'text/event-stream; charset=utf-8' } },
);
"""


@pytest.fixture(scope="module")
def corral(models):
    """Says nonsense, fast, and for ever if nobody stops it."""
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 1024, "-np", 4, "--context-shift") as server:
        yield server


@pytest.fixture(params=["chromium", "node"])
def start(request):
    """Makes a `Run` for the server with a certain address."""
    if request.param == "node":
        folder = request.getfixturevalue("tmp_path")
        return lambda url: in_node(folder)
    page = request.getfixturevalue("page")
    return lambda url: in_chromium(page, url)


@pytest.fixture
def run(start, corral):
    return start(corral.url)


@pytest.fixture
def config(corral):
    return {"api_url": corral.url}


def wait_until_idle(corral) -> None:
    deadline = time.monotonic() + 120
    while corral.get("/health").json()["slots_processing"]:
        assert time.monotonic() < deadline, "the request goes on"
        time.sleep(0.01)


def test_a_generator_of_chunks_that_returns_the_text(run, corral, config):
    body = """
      const chunks = m.llama(prompt, params, config), all = [];
      for (;;) {
        const { value, done } = await chunks.next();
        if (done) return { all, text: value };
        all.push(value.data);
      }
    """
    found = run(body, prompt=PROMPT, params=FIXED, config=config)
    expected = corral.complete(prompt=PROMPT, **FIXED)
    assert found["text"] == expected["content"] == "".join(chunk["content"] for chunk in found["all"])
    assert len(found["all"]) > 3
    assert [chunk["stop"] for chunk in found["all"]] == [False] * (len(found["all"]) - 1) + [True]
    assert found["all"][-1]["tokens_predicted"] == FIXED["n_predict"]


def test_one_answer_without_a_stream(run, corral, config):
    body = """
      const all = [];
      for await (const chunk of m.llama(prompt, params, config)) all.push(chunk.data);
      return all;
    """
    (found,) = run(body, prompt=PROMPT, params={**FIXED, "stream": False}, config=config)
    assert found["content"] == corral.complete(prompt=PROMPT, **FIXED)["content"]
    assert found["stop"] is True


def test_several_prompts_are_all_heard_to_their_end(run, corral, config):
    body = """
      const texts = ["", ""];
      for await (const { data } of m.llama(prompts, params, config)) texts[data.index] += data.content;
      return texts;
    """
    prompts = [PROMPT, "One, two, three,"]
    found = run(body, prompts=prompts, params=FIXED, config=config)
    assert found == [corral.complete(prompt=prompt, **FIXED)["content"] for prompt in prompts]


@pytest.mark.parametrize("stream", [True, False])
def test_another_endpoint(run, corral, config, stream):
    body = "return await m.llamaPromise(prompt, params, config);"
    where = {"url_prefix": config["api_url"], "endpoint": "/v1/completions"}
    params = {"max_tokens": 12, "temperature": 0, "seed": 1, "stream": stream}
    found = run(body, prompt=PROMPT, params=params, config=where)
    answer = corral.post(
        "/v1/completions", prompt=PROMPT, n_predict=500, stop=["</s>"], **params | {"stream": False}
    )
    assert found == answer.json()["choices"][0]["text"] != ""


def test_events_of_a_target(run, corral, config):
    body = """
      const target = m.llamaEventTarget(prompt, params, config), heard = [];
      return await new Promise((resolve) => {
        for (const type of ["message", "generation_settings", "timings", "done", "error"])
          target.addEventListener(type, (event) => {
            heard.push([type, event.detail]);
            if (type === "done" || type === "error") resolve(heard);
          });
      });
    """
    heard = run(body, prompt=PROMPT, params=FIXED, config=config)
    types = [type for type, _ in heard]
    n = types.count("message")
    assert n > 3
    assert types == ["message"] * n + ["generation_settings", "timings", "done"]
    details = dict(heard)
    expected = corral.complete(prompt=PROMPT, **FIXED)
    assert details["done"] == {"content": expected["content"]}
    assert "".join(detail["content"] for type, detail in heard if type == "message") == expected["content"]
    assert details["generation_settings"]["n_predict"] == FIXED["n_predict"]
    assert details["timings"]["predicted_n"] == FIXED["n_predict"]


def test_a_target_tells_what_went_wrong(run, problems, config):
    problems.allow("400")
    body = """
      const target = m.llamaEventTarget("a", { n_predict: "many" }, config);
      const { detail } = await new Promise((resolve) => target.addEventListener("error", resolve));
      return [detail.message, detail.status, detail instanceof Error];
    """
    message, status, is_error = run(body, config=config)
    assert "n_predict" in message
    assert (status, is_error) == (400, True)


def test_a_promise_and_a_callback(run, corral, config):
    expected = corral.complete(prompt=PROMPT, **FIXED)["content"]
    body = "return await m.llamaPromise(prompt, params, config);"
    assert run(body, prompt=PROMPT, params=FIXED, config=config) == expected
    # It has no way to say which server: that of the page, or what `fetch` makes of it.
    body = """
      const there = globalThis.fetch;
      globalThis.fetch = (path, options) => there(path.startsWith("/") ? url + path : path, options);
      let text = "";
      const add = ({ data }) => { text += data.content; };
      await m.llamaComplete({ ...params, prompt }, new AbortController(), add);
      return text;
    """
    assert run(body, prompt=PROMPT, params=FIXED, url=corral.url) == expected


def test_what_the_model_is(run, corral, config):
    found = run("return await m.llamaModelInfo(config);", config=config)
    assert found == corral.get("/props").json()["default_generation_settings"]
    assert found["n_ctx"] == 256


def test_leaving_the_loop_ends_the_request(run, corral, config):
    body = """
      let n = 0;
      for await (const chunk of m.llama("Tell me a story", params, config)) if (++n === 3) break;
      return n;
    """
    assert run(body, params=ENDLESS, config=config) == 3
    wait_until_idle(corral)


@pytest.mark.parametrize("n", [0, 3])
def test_a_controller_ends_the_request(run, corral, config, n):
    """Before anything has come, and in the middle."""
    body = """
      const controller = new AbortController();
      let seen = 0;
      if (!n) setTimeout(() => controller.abort(), 50);
      try {
        const params_ = n ? params : { ...params, stream: false };
        for await (const chunk of m.llama("Tell me a story", params_, { ...config, controller }))
          if (++seen === n) controller.abort();
      } catch (error) {
        return [error.name, seen];
      }
    """
    assert run(body, params=ENDLESS, config=config, n=n) == ["AbortError", n]
    wait_until_idle(corral)


def test_what_the_server_refuses_is_thrown(run, problems, config):
    problems.allow("400|404")
    body = """
      const failed = async (params, more) => {
        try { await m.llamaPromise("a", params, { ...config, ...more }); } catch (error) {
          return [error.message, error.status, error.type];
        }
      };
      return [await failed({ top_k: "x" }), await failed({}, { endpoint: "/none" })];
    """
    (message, status, kind), missing = run(body, config=config)
    assert "top_k" in message
    assert (status, kind) == (400, "invalid_request_error")
    assert missing == ["File Not Found", 404, "not_found_error"]


def test_what_fails_in_the_middle_is_thrown(run):
    body = (
        FAKE
        + """
      const seen = [];
      const answer = () => streamed([new TextEncoder().encode(text)]);
      try {
        for await (const { data } of m.llama("a")) seen.push(data.content);
      } catch (error) {
        return [seen, error.message, error.status];
      }
    """
    )
    error = '{"code":500,"message":"the model failed","type":"server_error"}'
    for text in (f'data: {{"error":{error}}}', f"error: {error}"):
        found = run(body, text='data: {"content":"a"}\n\n' + text + "\n\n")
        assert found == [["a"], "the model failed", 500]


def test_events_may_be_cut_anywhere(run):
    """Every place to cut, with all that may be between and in events."""
    body = (
        FAKE
        + """
      const bytes = new TextEncoder().encode(text);
      const found = new Set();
      for (let i = 0; i <= bytes.length; i++) {
        const [head, tail] = [bytes.slice(0, i), bytes.slice(i)];
        for (const pieces of [[head, tail], [head, new Uint8Array(), tail.slice(0, 1), tail.slice(1)]]) {
          globalThis.fetch = async () => streamed(pieces);
          const all = [];
          for await (const chunk of m.llama("a")) all.push(chunk);
          found.add(JSON.stringify(all));
        }
      }
      return [...found].map((one) => JSON.parse(one));
    """
    )
    text = (
        ": a comment\n\n"
        'data: {"content":"grün 🦙"}\n\n'
        'event: x\r\nid:7\r\ndata:{"content":\r\ndata: "b"}\r\n\r\n'
        ':\n:data: {"content":"no"}\n'
        'data: {"content":"c\\n"}\r\r'
        "retry: 5\n\n"
        'data: {"content":"last"}'
    )
    (found,) = run(body, text=text)
    assert found == [
        {"data": {"content": "grün 🦙"}},
        {"event": "x", "id": "7", "data": {"content": "b"}},
        {"data": {"content": "c\n"}},
        {"data": {"content": "last"}},
    ]


def test_what_is_sent(run):
    body = (
        FAKE
        + """
      const answer = () => streamed([]);
      await m.llamaPromise("a");
      const params = { n_predict: 7, stop: [], api_key: "secret" };
      await m.llamaPromise("a", params, { api_url: "http://x", endpoint: "/infill" });
      return sent.map(({ url, body, headers, method }) => [url, JSON.parse(body), headers, method]);
    """
    )
    (url, plain, headers, method), (other, given, known, _) = run(body)
    assert (url, method, other) == ("/completion", "POST", "http://x/infill")
    assert plain == {"prompt": "a", "stream": True, "n_predict": 500, "temperature": 0.2, "stop": ["</s>"]}
    assert given == {**plain, "n_predict": 7, "stop": []}
    assert "Authorization" not in headers
    assert known == {**headers, "Authorization": "Bearer secret"}


def test_a_server_with_keys(start, models, problems):
    problems.allow("401")
    body = """
      const tell = (error) => [error.message, error.status];
      const params = { n_predict: 3, ignore_eos: true };
      return [
        await m.llamaPromise("a", params, config).catch(tell),
        await m.llamaPromise("a", { ...params, api_key: "wrong" }, config).catch(tell),
        typeof (await m.llamaPromise("a", { ...params, api_key: key }, config)),
        Object.keys(await m.llamaModelInfo(config)),
        (await m.llamaModelInfo({ ...config, api_key: key })).params !== undefined,
      ];
    """
    with CorralProcess("-m", models / "llama-bpe.gguf", "--api-key", KEY, "-c", 256) as guarded:
        found = start(guarded.url)(body, config={"api_url": guarded.url}, key=KEY)
    refused = ["Invalid API Key", 401]
    assert found == [refused, refused, "string", ["n_ctx"], True]


# As in llama-server's manual, letter for letter.
EXAMPLE = """<html>
  <body>
    <pre>
      <script type="module">
        import { llama } from '/completion.js'

        const prompt = `### Instruction:
Write dad jokes, each one paragraph.
You can use html formatting if needed.

### Response:`

        for await (const chunk of llama(prompt)) {
          document.write(chunk.data.content)
        }
      </script>
    </pre>
  </body>
</html>
"""


def test_the_page_of_the_manual(page, tmp_path):
    (tmp_path / "index.html").write_text(EXAMPLE)
    with CorralProcess("-c", 1024, "-n", 40, "--path", tmp_path) as server:
        with page.expect_response("**/completion") as answer:
            page.goto(server.url)
        events = re.findall(r"^data: (.+)$", answer.value.text(), re.M)
        text = "".join(json.loads(event)["content"] for event in events)
        assert len(text) > 20
        same = "new DOMParser().parseFromString(text, 'text/html').body.textContent.trim()"
        page.wait_for_function(f"(text) => document.body?.textContent.trim() === {same}", arg=text)
