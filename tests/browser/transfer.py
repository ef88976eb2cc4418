"""A picture, and a paste or drop of it."""

from __future__ import annotations

import io

from PIL import Image


def png(color: str = "red", size: tuple[int, int] = (32, 32)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "PNG")
    return out.getvalue()


TRANSFER = """([target, kind, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "picture.png", { type: "image/png" }));
  const init = kind === "paste" ? { clipboardData: transfer } : { dataTransfer: transfer };
  const Kind = kind === "paste" ? ClipboardEvent : DragEvent;
  target.dispatchEvent(new Kind(kind, { ...init, bubbles: true, cancelable: true }));
}"""
