"""How things are placed on a screen."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator

PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


def is_inside(element: Locator) -> bool:
    """Whether all of it is on the screen."""
    box, size = element.bounding_box(), element.page.viewport_size
    assert box and size
    return (
        0 <= box["x"]
        and 0 <= box["y"]
        and box["x"] + box["width"] <= size["width"] + 1
        and box["y"] + box["height"] <= size["height"] + 1
    )
