"""A script that measures how well texts of a page stand out from what is behind them."""

from __future__ import annotations

CONTRASTS = """() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const paint = (...colors) => {
    for (const color of colors) {
      context.fillStyle = color;
      context.fillRect(0, 0, 1, 1);
    }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => {
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((byte) => linear(byte / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const grounds = (element) => {
    const color = getComputedStyle(element).backgroundColor;
    return element.parentElement ? [...grounds(element.parentElement), color] : ["white", color];
  };
  const contrast = (element) => {
    const { color, opacity } = getComputedStyle(element, "::placeholder");
    const text = `color-mix(in srgb, ${color} ${100 * opacity}%, transparent)`;
    const [back, front] = [paint(...grounds(element)), paint(...grounds(element), text)].map(luminance);
    return (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
  };
  const fields = [...document.querySelectorAll("input, textarea")].filter(({ placeholder }) => placeholder);
  return Object.fromEntries(fields.map((each) => [each.placeholder, contrast(each)]));
}"""
