"""Pictures on their way into a message: chosen, pasted, dropped, refused, made smaller."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image
from playwright.sync_api import expect

READ = """async ({ files, nBefore }) => {
  const { readImages } = await import("/js/attachment.js");
  const made = files.map(({ name, type, content, nBytes }) => {
    const decoded = content && Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
    const bytes = decoded ?? new Uint8Array(nBytes);
    return new File([bytes], name, { type });
  });
  try {
    return { images: await readImages(made, nBefore) };
  } catch (error) {
    return { error: error.message };
  }
}"""


@pytest.fixture
def read(page, corral):
    page.goto(corral.url + "/js/attachment.js")

    def run(*files, n_before=0):
        return page.evaluate(READ, {"files": list(files), "nBefore": n_before})

    return run


def file(name, kind, picture=None, *, content=None, **options):
    if picture is not None:
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        content = buffer.getvalue()
    encoded = base64.b64encode(content).decode()
    return {"name": name, "type": f"image/{kind.lower()}", "content": encoded}


def opened(picture):
    head, _, content = picture["url"].partition(",")
    raw = base64.b64decode(content)
    assert len(raw) == picture["bytes"]
    return head, Image.open(io.BytesIO(raw))


def noise(width, height):
    return Image.effect_noise((width, height), 90).convert("RGB")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_small_picture_is_sent_as_it_is(read, kind):
    given = file(f"a.{kind}", kind, Image.new("RGB", (40, 30), "red"))
    (picture,) = read(given)["images"]
    assert picture["name"] == f"a.{kind}"
    assert picture["url"] == f"data:image/{kind.lower()};base64,{given['content']}"


@pytest.mark.parametrize(
    ("kind", "head"), [("PNG", "data:image/png;base64"), ("JPEG", "data:image/jpeg;base64")]
)
def test_a_large_picture_is_made_smaller(read, kind, head):
    (picture,) = read(file("big", kind, Image.new("RGB", (3000, 1500), "teal")))["images"]
    found, image = opened(picture)
    assert found == head
    assert image.size == (2048, 1024)
    assert (
        sum(abs(a - b) for a, b in zip(image.convert("RGB").getpixel((9, 9)), (0, 128, 128), strict=True)) < 9
    )


def test_a_picture_that_stays_heavy_becomes_jpeg(read):
    (picture,) = read(file("noise.png", "PNG", noise(2500, 2000)))["images"]
    head, image = opened(picture)
    assert head == "data:image/jpeg;base64"
    assert image.size == (2048, 1638)
    assert picture["bytes"] < 4_000_000


def test_moving_pictures_are_their_first_frame(read):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "PNG", "WEBP"):
        moving = file(f"a.{kind}", kind, frames[0], save_all=True, append_images=frames[1:], duration=100)
        (picture,) = read(moving)["images"]
        head, image = opened(picture)
        assert head == "data:image/png;base64"
        assert getattr(image, "n_frames", 1) == 1
        red, green, blue = image.convert("RGB").getpixel((5, 5))
        assert red > 200
        assert green + blue < 60


def test_clear_pictures_stay_clear(read):
    (picture,) = read(file("a.gif", "GIF", Image.new("RGBA", (20, 20), (0, 0, 0, 0))))["images"]
    _, image = opened(picture)
    assert image.convert("RGBA").getpixel((5, 5))[3] == 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"name": "a.txt", "type": "text/plain", "nBytes": 3},
            "a.txt is not an image. Supported: images (PNG",
        ),
        ({"name": "a", "type": "", "nBytes": 3}, "a is not an image. Supported: images (PNG"),
        ({"name": "a.png", "type": "image/png", "nBytes": 0}, "a.png is empty."),
        ({"name": "a.png", "type": "image/png", "nBytes": 100}, "a.png cannot be read as an image."),
        ({"name": "a.png", "type": "image/png", "nBytes": 50_000_001}, "a.png is larger than 50 MB."),
        (
            {"name": "a.svg", "type": "image/svg+xml", "nBytes": 9},
            "a.svg is a drawing (SVG). Supported: images (PNG",
        ),
        ({"name": "", "type": "image/heic", "nBytes": 9}, "image cannot be read as an image."),
    ],
)
def test_what_is_refused_is_told_why(read, given, sentence):
    assert read(given)["error"].startswith(sentence)


def test_a_message_takes_eight(read):
    one = file("a.png", "PNG", Image.new("RGB", (4, 4)))
    assert len(read(*[one] * 8)["images"]) == 8
    assert read(*[one] * 9)["error"] == "A message can have at most 8 images."
    assert read(one, n_before=8)["error"] == "A message can have at most 8 images."


@pytest.mark.parametrize(
    ("event", "names"),
    [
        ("new ClipboardEvent('paste', { clipboardData: data })", ["a.png", "b.txt"]),
        ("(data.setData('text/plain', 'x'), new ClipboardEvent('paste', { clipboardData: data }))", []),
        ("new DragEvent('drop', { dataTransfer: data })", ["a.png", "b.txt"]),
        (
            "(data.setData('text/plain', 'x'), new DragEvent('drop', { dataTransfer: data }))",
            ["a.png", "b.txt"],
        ),
        ("(data.items.clear(), new DragEvent('drop', { dataTransfer: data }))", []),
        ("new Event('drop')", []),
    ],
)
def test_files_of_an_event(page, corral, event, names):
    page.goto(corral.url + "/js/attachment.js")
    found = page.evaluate(
        f"""async () => {{
          const {{ filesOf, hasFiles }} = await import("/js/view/file_drop.js");
          const data = new DataTransfer();
          data.items.add(new File(["x"], "a.png", {{ type: "image/png" }}));
          data.items.add(new File(["x"], "b.txt", {{ type: "text/plain" }}));
          const event = {event};
          return hasFiles(event) ? filesOf(event).map(({{ name }}) => name) : [];
        }}"""
    )
    assert found == names


def test_thumbnails_can_be_removed(page, corral):
    page.goto(corral.url + "/js/attachment.js")
    dot = file("a.png", "PNG", Image.new("RGB", (4, 4)))
    page.evaluate(
        """async (url) => {
          const { html, render } = await import("/js/html.js");
          const { Attachments } = await import("/js/view/attachments.js");
          let images = ["one.png", "two.png"].map((name) => ({ name, url, bytes: 70 }));
          document.body.replaceChildren();
          const onRemove = (at) => { images = images.filter((_, i) => i !== at); draw(); };
          const shown = () => html`<${Attachments} images=${images} onRemove=${onRemove} />`;
          const draw = () => render(shown(), document.body);
          draw();
        }""",
        f"data:image/png;base64,{dot['content']}",
    )
    expect(page.get_by_role("list", name="Images of this message")).to_be_visible()
    expect(page.get_by_role("img")).to_have_count(2)
    page.get_by_role("button", name="Remove one.png").click()
    expect(page.get_by_role("img")).to_have_count(1)
    expect(page.get_by_role("img", name="two.png")).to_be_visible()
    page.get_by_role("button", name="Remove two.png").press("Enter")
    expect(page.get_by_role("list")).to_have_count(0)
