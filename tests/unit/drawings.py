# SPDX-License-Identifier: BSD-2-Clause
"""Checks that hold for every SVG that is drawn."""

import re

SVG = "{http://www.w3.org/2000/svg}"


def assert_coloured(drawn: str) -> None:
    """Asserts that every used class has a colour for light and for dark."""
    light, dark = drawn[drawn.index("<style>") : drawn.index("</style>")].split("@media (prefers-color-scheme:dark)")
    for name in {word for classes in re.findall(r'class="([^"]+)"', drawn) for word in classes.split()}:
        assert f".{name}{{" in light, name
        assert f".{name}{{" in dark, name
