# SPDX-License-Identifier: BSD-2-Clause
"""Draws what all pictures share: colours, text, and the document around them. Pure: data → SVG.

Readable on light and dark: a picture has its own background, and uses the dark one where the reader prefers that.
"""

from collections.abc import Iterator
from xml.sax.saxutils import escape

CHARACTER = 0.56  # mean width of a letter, as a share of the font size, rounded up

# (light, dark). The states differ in lightness too, not in hue alone.
_COLOURS = {
    "ground": ("#ffffff", "#12161c"),
    "ink": ("#1d2430", "#e8ebf0"),
    "faint": ("#5d6776", "#9aa4b2"),
    "grid": ("#e4e8ed", "#2a313b"),
    "line": ("#1f6fb2", "#5cb0f2"),
    "target": ("#2e8b57", "#5fd394"),
    "peer": ("#7d5ba6", "#b08be0"),
    "fault": ("#c0392b", "#ff7b6b"),
    "GOOD": ("#7cc5a8", "#3f8f74"),
    "SKIP": ("#e9b949", "#d9a62e"),
    "ASSUMED_BAD": ("#c0392b", "#ff6b5a"),
    "DENIED": ("#7d5ba6", "#b08be0"),
    "UNKNOWN": ("#b9c0ca", "#5a6370"),
}


def head(width: int, height: int, title: str, description: str) -> Iterator[str]:
    """Yields the beginning of a document; the caller ends it with </svg>."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="Inter, Helvetica Neue, Arial, DejaVu Sans, sans-serif">'
    )
    yield f"<title>{escape(title)}</title>"
    yield f"<desc>{escape(description)}</desc>"
    yield f"<style>{_style()}</style>"
    yield f'<rect class="ground" width="{width}" height="{height}"/>'


def text_width(words: str, size: float) -> float:
    """Returns the approximate width of a text, in pixels."""
    return len(words) * size * CHARACTER


def text(
    x: float,
    y: float,
    words: str,
    kind: str,
    size: int,
    *,
    anchor: str = "start",
    weight: int = 400,
    halo: bool = False,
) -> str:
    """Returns a text at its base line. `halo`: an edge in the background colour, where lines cross the text."""
    edge = ' stroke-width="4" stroke-linejoin="round" paint-order="stroke"' if halo else ""
    return (
        f'<text class="{kind}{" halo" if halo else ""}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" '
        f'text-anchor="{anchor}" font-weight="{weight}"{edge}>{escape(words)}</text>'
    )


def _style() -> str:
    def rules(dark: bool) -> str:
        c = {name: pair[dark] for name, pair in _COLOURS.items()}
        fills = "".join(f".{name}{{fill:{colour}}}" for name, colour in c.items() if name != "grid")
        strokes = {"grid": "grid", "stroke": "line", "edge": "fault", "halo": "ground"}
        strokes |= {"goal": "target", "beside": "peer", "range": "ink"}
        return fills + "".join(f".{kind}{{stroke:{c[colour]}}}" for kind, colour in strokes.items())

    return f"{rules(False)}@media (prefers-color-scheme:dark){{{rules(True)}}}"
