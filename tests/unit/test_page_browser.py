# SPDX-License-Identifier: BSD-2-Clause
"""Opens the web page in a real browser: what it draws, with which names, at which widths, and without an answer."""

from collections.abc import Iterator

import pytest

from labkit.screenshots.browser import Browser, find_browser, texts
from tests.unit.page_server import EVENT, PageServer, running
from tests.unit.test_page_document import CAUSE

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no chromium is installed (apt-get install chromium)")

MARKUP = '<img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'
DRAWN = "document.querySelectorAll('#peers tbody tr').length > 0"


@pytest.fixture
def server() -> PageServer:
    found = PageServer()
    found.add_samples()
    return found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.faults.clear()
    chromium.resize(1600, 1000)
    yield chromium
    chromium.open("about:blank")


def test_all_well(server: PageServer, browser: Browser) -> None:
    with running(server) as url:
        browser.open(url)
        browser.wait_until(DRAWN)
        assert browser.evaluate(texts("#headline")) == ["All well"]
        assert browser.evaluate("document.title") == "h0: all well"
        assert browser.evaluate("document.querySelectorAll('.cells .cell').length") == 8
        assert browser.evaluate("document.querySelectorAll('.cell .ASSUMED_BAD').length") == 0
        assert browser.evaluate("document.querySelectorAll('#planes .curve').length") == 6
        assert browser.evaluate(texts("#planes tr:first-child .value"))[0] == "100 Mbit/s"
    assert not browser.faults


def test_a_fault(server: PageServer, browser: Browser) -> None:
    with running(server) as url:
        browser.open(url)
        browser.wait_until(DRAWN)
        server.fail(1, 2)
        server.view.status_document["diagnosis"] = [CAUSE]
        browser.wait_until("document.querySelectorAll('.cell .mark.ASSUMED_BAD').length > 0")
        assert browser.evaluate(texts("#headline")) == ["Wrong now"]
        (cause,) = browser.evaluate(texts("#causes li"))
        assert "Plane 1: T1 2 is dead" in cause
        assert "Do: check T1 2" in cause
        bad = "document.querySelector('.cell:has(.ASSUMED_BAD)')"
        assert browser.evaluate(f"{bad}.getAttribute('aria-label')") == "Plane 1, T1 2: 2 ASSUMED_BAD"
        browser.evaluate(f"{bad}.focus()")
        assert "mrcctl paths --plane 1 --bad" in browser.evaluate(texts("#cell"))[0]
        assert browser.evaluate(texts("#peers td:first-child"))[0].startswith("h1")
    assert [fault for fault in browser.faults if "ERR_CONNECTION" not in fault] == []


def test_names_are_never_markup(server: PageServer, browser: Browser) -> None:
    server.view.status_document |= {
        "host": MARKUP,
        "cluster": MARKUP,
        "diagnosis": [CAUSE | {"sentence": MARKUP, "do": f"`{MARKUP}`", "target": MARKUP, "severity": "critical"}],
        "planes": [{"plane": p, "interface": MARKUP, "hook": MARKUP, "up": True} for p in range(2)],
    }
    server.denials.append({"action": "deny", "target": MARKUP, "reason": MARKUP, "remaining_s": None})
    server.events = [EVENT | {"peer": MARKUP, "reason": MARKUP}]
    with running(server) as url:
        browser.open(url)
        browser.wait_until(DRAWN)
        assert browser.evaluate("window.attacked") is None
        assert browser.evaluate("document.querySelectorAll('img, body script').length") == 0
        assert browser.evaluate(texts("#host")) == [MARKUP]
        assert MARKUP in browser.evaluate(texts("#causes code"))
        assert MARKUP in browser.evaluate(texts("#events li"))[0]
    assert not browser.faults


@pytest.mark.parametrize("width", [400, 700, 1600])
@pytest.mark.parametrize("is_dark", [False, True])
def test_nothing_is_wider_than_the_window(server: PageServer, browser: Browser, width: int, is_dark: bool) -> None:
    server.fail(1, 2)
    server.view.status_document["diagnosis"] = [CAUSE]
    with running(server) as url:
        browser.resize(width, 900, is_dark=is_dark)
        browser.open(url)
        browser.wait_until(DRAWN)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(ground.removeprefix("rgb(").split(",")[0]) < 128) == is_dark


def test_no_answer_is_said(server: PageServer, browser: Browser) -> None:
    with running(server) as url:
        browser.open(url)
        browser.wait_until(DRAWN)
    browser.wait_until("document.getElementById('age').textContent.startsWith('No answer for')")
    browser.evaluate("{ const now = performance.now.bind(performance); performance.now = () => now() + 60_000; }")
    browser.wait_until("document.body.classList.contains('old')")
    assert "mrcd has not answered" in browser.evaluate(texts("#headline"))[0]


def test_an_error_of_the_first_poll_is_said(server: PageServer, browser: Browser) -> None:
    server.view.error = ValueError("no document")
    with running(server) as url:
        browser.open(url)
        browser.wait_until("document.getElementById('headline').textContent.includes('HTTP status 500')")
