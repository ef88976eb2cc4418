"""The monitor in Chromium, of a real server: what it shows while things go on, and when they go wrong."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.process import START_S, CorralProcess

SECRET = "quokkas guard the lighthouses of the northern sea"
ENDLESS = {"prompt": SECRET, "n_predict": -1, "ignore_eos": True}
KEY = "sk-monitor"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
OFFLINE = r"ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING|CONNECTION_RESET|EMPTY_RESPONSE)"


def serve(models, *options: object) -> CorralProcess:
    """A tiny model: the page does not care how well it answers."""
    model = models / "llama-bpe.gguf"
    return CorralProcess("-m", model, "-c", 2048, "-np", 2, "--context-shift", "--slots", *options)


@pytest.fixture(scope="module")
def server(models) -> Iterator[CorralProcess]:
    with serve(models) as server:
        yield server


@contextlib.contextmanager
def running(server: CorralProcess, n: int) -> Iterator[None]:
    """So many requests that end with this block."""
    is_over = threading.Event()

    def run() -> None:
        with httpx.stream(
            "POST", server.url + "/completion", json={**ENDLESS, "stream": True}, timeout=START_S
        ) as r:
            for _ in r.iter_bytes():
                if is_over.is_set():
                    return

    threads = [threading.Thread(target=run) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def open_monitor(page: Page, server: CorralProcess) -> Page:
    page.goto(server.url + "/monitor")
    expect(state(page, "ready")).to_be_visible()
    return page


def state(page: Page, name: str) -> Locator:
    return page.locator(f".status[data-state={name}]")


def tile(page: Page, name: str) -> Locator:
    return page.locator(".tile", has_text=name).locator("strong")


def test_lanes_show_what_requests_did(page, server):
    open_monitor(page, server)
    slot = page.get_by_role("group", name="Slot 1")
    headers = {"x-request-id": "my-own-request"}
    body = {"prompt": "three foxes and a river " * 20, "n_predict": 12, "ignore_eos": True, "id_slot": 1}
    httpx.post(server.url + "/completion", json=body, headers=headers, timeout=START_S).raise_for_status()
    expect(slot.locator(".piece.prefill")).to_have_count(1)
    expect(slot.locator(".piece.decode")).to_have_count(1)
    slot.locator(".piece.decode").dispatch_event("mouseenter")
    details = page.locator(".details")
    expect(details).to_contain_text("Slot 1: answer, 12 tokens")
    expect(details).to_contain_text("Request my-own-request")
    slot.locator(".piece.decode").focus()
    page.keyboard.press("ArrowLeft")
    expect(slot.locator(".piece.prefill")).to_be_focused()
    expect(details).to_contain_text(re.compile(r"Slot 1: prompt, (\d+) of \1 tokens"))
    held = page.get_by_role("group", name="Slot 1").locator(".holding")
    expect(held).to_have_attribute("aria-label", re.compile(r"Holds \d+ of 1,024 tokens"))


def test_last_requests_tell_what_was_cached(page, server):
    open_monitor(page, server)
    body = {"prompt": "the same story once more " * 20, "n_predict": 4, "ignore_eos": True, "id_slot": 0}
    first = server.complete(**body)
    again = server.complete(**body)
    shared = server.complete(**{**body, "id_slot": 1})
    n_cached = [each["timings"]["cache_n"] for each in (shared, again, first)]
    assert n_cached[0] > 0 < n_cached[1]
    rows = page.locator(".requests table").locator("tbody tr")
    for i, (n, source) in enumerate(zip(n_cached, ("slot 0", "same slot", "–"), strict=True)):
        cells = rows.nth(i).locator("td")
        expect(cells.nth(6)).to_have_text(str(n))
        expect(cells.nth(7)).to_have_text(source)
        expect(rows.nth(i).get_by_role("rowheader")).to_contain_text("/completion")
    sources = page.locator(".sources")
    expect(sources.locator(".from-slot strong")).not_to_have_text("0")
    expect(page.get_by_role("group", name="Slot 1").locator(".holding")).to_have_attribute(
        "aria-label", re.compile("of them reused from")
    )


def test_the_queue_appears_when_there_are_more_requests_than_slots(page, server):
    open_monitor(page, server)
    expect(tile(page, "Waiting")).to_have_text("0")
    with running(server, 4):
        expect(tile(page, "Waiting")).to_have_text("2")
        expect(tile(page, "Running")).to_have_text("2")
        queue = page.get_by_role("group", name="Queue")
        expect(queue).to_contain_text("2 waiting")
        expect(queue.get_by_role("img")).to_have_attribute("aria-label", re.compile("2 waiting: .* for "))
        expect(page.locator(".piece.decode.open")).to_have_count(2)
        expect(queue.locator(".waiting").first).to_be_attached()
        expect(tile(page, "Generated")).not_to_have_text("0")
        expect(page.locator(".plot", has_text="Tokens per second").locator(".unseen")).to_contain_text(
            re.compile(r"generated: [1-9]")
        )
    expect(tile(page, "Waiting")).to_have_text("0")
    expect(page.locator(".requests table")).to_contain_text("499")


def test_a_killed_engine_is_counted_and_the_page_goes_on(page, problems, models):
    problems.allow(OFFLINE)  # when the server ends before the page
    with serve(models) as server:
        open_monitor(page, server)
        expect(tile(page, "Restarts")).to_have_text("0")
        with running(server, 1):
            expect(page.locator(".piece.decode.open")).to_have_count(1)
            server.engine.kill()
            expect(tile(page, "Restarts")).to_have_text("1")
            expect(page.locator(".piece.lost")).to_have_count(1)
            expect(state(page, "ready")).to_be_visible()
            expect(page.locator(".piece.decode.open")).to_have_count(1)
            expect(page.locator("i.restart").first).to_be_attached()
        expect(page.locator(".requests table")).to_contain_text("resumed")


def test_an_engine_that_is_away_is_told(page, problems, models):
    problems.allow(OFFLINE)
    with serve(models, "--sleep-idle-seconds", 1) as server:
        page.goto(server.url + "/monitor")
        expect(state(page, "sleeping")).to_have_text("The engine is unloaded until the next request.")
        with running(server, 1):  # otherwise it would soon be unloaded again
            expect(state(page, "ready")).to_be_visible()


def test_it_connects_again_when_the_server_is_back(page, problems, models):
    problems.allow(OFFLINE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = serve(models, "--port", port)
    try:
        open_monitor(page, server)
        server.complete(prompt="before", n_predict=2)
        expect(page.locator(".requests table").locator("tbody tr")).to_have_count(1)
        server.process.send_signal(signal.SIGKILL)
        expect(state(page, "down")).to_contain_text("The server cannot be reached")
        expect(page.locator(".requests table").locator("tbody tr")).to_have_count(1)
    finally:
        server.process.kill()
        server.stop()
    with serve(models, "--port", port) as server:
        expect(state(page, "ready")).to_be_visible()
        expect(page.locator(".requests table")).to_have_count(0)
        server.complete(prompt="after", n_predict=2)
        expect(page.locator(".requests table").locator("tbody tr")).to_have_count(1)


@pytest.fixture(scope="module")
def guarded(models) -> Iterator[CorralProcess]:
    with serve(models, "--api-key", f"{KEY},sk-other") as server:
        yield server


def show_key(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_a_server_with_keys_asks_for_one(page, problems, guarded):
    problems.allow("401")
    page.goto(guarded.url + "/monitor")
    dialog = page.get_by_role("dialog", name="This server requires a key")
    expect(dialog).to_be_visible()
    show_key(page, "wrong")
    expect(dialog.get_by_role("alert")).to_have_text("This key is not valid.")
    expect(page.locator(".tile")).to_have_count(0)
    show_key(page, KEY)
    expect(state(page, "ready")).to_be_visible()
    expect(dialog).to_have_count(0)


SLOW_EFFECTS = """
  const later = globalThis.setTimeout;
  globalThis.requestAnimationFrame = () => 0;
  globalThis.setTimeout = (work, ms, ...given) => later(work, ms + 1000, ...given);
"""


@pytest.mark.parametrize("path", ["/monitor", "/"])
def test_a_key_is_asked_for_however_soon_the_server_wants_it(page, problems, guarded, path):
    """Before the page, once drawn, listens to what changes."""
    problems.allow("401")
    page.add_init_script(SLOW_EFFECTS)
    page.goto(guarded.url + path)
    expect(page.get_by_label("API key")).to_be_visible()


def test_prompts_are_shown_to_whom_they_belong_when_asked_for(page, problems, guarded):
    problems.allow("401")
    for key in (KEY, "sk-other"):
        body = {"prompt": f"{SECRET}, says {key}", "n_predict": 2, "id_slot": 0 if key == KEY else 1}
        headers = {"authorization": f"Bearer {key}"}
        httpx.post(
            guarded.url + "/completion", json=body, headers=headers, timeout=START_S
        ).raise_for_status()
    page.goto(guarded.url + "/monitor")
    show_key(page, KEY)
    expect(page.locator(".requests table")).to_contain_text("key2")
    assert "quokkas" not in page.content()
    page.get_by_label("Show my prompts").check()
    expect(page.locator(".lane .prompt")).to_have_count(1)
    expect(page.get_by_role("group", name="Slot 0").locator(".prompt")).to_have_text(f"{SECRET}, says {KEY}")
    assert "says sk-other" not in page.content()
    page.get_by_label("Show my prompts").uncheck()
    expect(page.locator(".lane .prompt")).to_have_count(0)


def test_no_text_of_a_prompt_or_an_answer_is_told(page, server):
    open_monitor(page, server)
    answer = server.complete(prompt=SECRET, grammar='root ::= "zebras" " sing" " aloud"')
    assert answer["content"] == "zebras sing aloud"
    expect(page.locator(".requests table")).to_be_visible()
    told = httpx.get(server.url + "/monitor/events?limit=2", timeout=START_S).text
    assert len(told.split("data: ")) == 3
    for text in (page.content(), told):
        assert not re.search("quokkas|lighthouses|zebras", text)
    assert httpx.get(server.url + "/monitor/events?prompts=true").status_code == 403


COLORS = """() => {
  const probe = document.body.appendChild(document.createElement("i"));
  const resolve = (name) => ((probe.style.color = `var(${name})`), getComputedStyle(probe).color);
  const canvas = document.querySelector(".plot canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] === 255) seen.add(`rgb(${data.slice(i, i + 3).join(", ")})`);
  const result = {
    page: getComputedStyle(document.body).backgroundColor,
    lines: seen.has(resolve("--line")),
    series: seen.has(resolve("--prefill")),
  };
  probe.remove();
  return result;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_have_the_colours_of_the_theme(new_page, server, scheme):
    page = open_monitor(new_page(color_scheme=scheme), server)
    expect(page.locator("main > .plots canvas")).to_have_count(3)
    page.wait_for_function(f"() => {{ const c = ({COLORS})(); return c.lines && c.series; }}")
    other = "dark" if scheme == "light" else "light"
    before = page.evaluate(COLORS)["page"]
    page.evaluate(f"localStorage.setItem('corral.theme', '{scheme}')")
    while page.locator("html").get_attribute("data-theme") != other:
        page.get_by_role("button", name="Light, dark or system theme").click()
    page.wait_for_function(f"() => {{ const c = ({COLORS})(); return c.lines && c.series; }}")
    assert page.evaluate(COLORS)["page"] != before


SWATCHES = """() => {
  const probe = document.body.appendChild(document.createElement("i"));
  return [...document.querySelectorAll(".plot .legend li")].map((each) => {
    probe.style.color = `var(--${each.className})`; // as the line is drawn
    return [getComputedStyle(each, "::before").backgroundColor, getComputedStyle(probe).color];
  });
}"""


def test_a_legend_has_the_colours_of_its_lines(page, server):
    open_monitor(page, server)
    expect(page.locator(".plot .legend li")).to_have_count(6)
    assert all(swatch == line for swatch, line in page.evaluate(SWATCHES))


def test_it_fits_a_phone(new_page, server):
    page = open_monitor(new_page(**PHONE), server)
    server.complete(prompt="Hello", n_predict=2)
    expect(page.locator(".requests table")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.get_by_role("link", name="Chat").get_attribute("href") == "./"


def test_nothing_moves_by_itself_for_those_who_want_that(new_page, server):
    frames = """() => new Promise((done) => {
      const seen = [], lanes = document.querySelector(".lanes"), { parse } = JSON;
      let n_events = 0; // every one is parsed
      JSON.parse = (...given) => (n_events++, parse(...given));
      const step = () => {
        seen.push(lanes.style.getPropertyValue("--shift"));
        if (seen.length < 30) requestAnimationFrame(step);
        else done([new Set(seen).size, n_events]);
      };
      step();
    })"""
    n_places, _ = open_monitor(new_page(), server).evaluate(frames)
    assert n_places > 20
    n_places, n_events = open_monitor(new_page(reduced_motion="reduce"), server).evaluate(frames)
    assert n_places <= 2 + n_events, "only with an event, the first of which may have come before"


def test_everything_has_a_name(page, server):
    open_monitor(page, server)
    server.complete(prompt="Hello", n_predict=2)
    expect(page.locator(".piece").first).to_be_attached()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, [role], table, figure")].filter((each) => {
             const labels = [...(each.labels ?? [])].map((label) => label.textContent).join("");
             return !(each.getAttribute("aria-label") || labels || each.textContent).trim();
           }).map((each) => each.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    assert page.locator("[role=status], [aria-live]").count() == 1, "only the state is read out by itself"


HARDWARE = {
    "cpu": {"share": 0.25, "peak": 0.75, "machine": 0.4, "cores": 8},
    "memory": {"used": 2 << 30, "peak": 3 << 30, "available": 8 << 30, "total": 16 << 30},
    "gpus": [{"name": "Card", "used": 10 << 30, "peak": 12 << 30, "total": 40 << 30}],
}


def test_what_the_server_uses_of_its_machine_is_shown_with_peaks(page, server):
    open_monitor(page, server)
    hardware = page.get_by_role("region", name="Hardware")
    expect(hardware.locator(".meter").nth(0)).to_have_text(
        re.compile(r"^\s*CPU \d+ % of \d+ cores?; .*Peak \d+ %")
    )
    expect(hardware.locator(".meter").nth(1)).to_have_text(
        re.compile(r"^\s*RAM [\d.]+ [MG]iB of .*Peak [\d.]+ [MG]iB")
    )


def test_memory_of_a_gpu_has_a_bar_with_a_mark_at_the_peak(page, server):
    page.route(re.compile("/monitor/hardware$"), lambda route: route.fulfill(json=HARDWARE))
    open_monitor(page, server)
    meter = page.locator(".meter", has_text="VRAM")
    expect(meter).to_contain_text("10.0 GiB of 40.0 GiB")
    expect(meter).to_contain_text("Peak 12.0 GiB")
    assert meter.locator("i").evaluate("(each) => each.style.width") == "25%"
    assert meter.locator("b").evaluate("(each) => each.style.left") == "30%"


def test_the_chat_has_a_live_figure_that_leads_to_the_monitor(page, server):
    page.goto(server.url)
    link = page.get_by_role("link", name="Monitor")
    expect(link.locator(".live-figure")).to_have_text(re.compile(r"^\d+ % CPU · [\d.]+ [MG]B$"))
    link.click()
    expect(state(page, "ready")).to_be_visible()
