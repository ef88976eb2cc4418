"""The harness itself: what a page does wrong is noticed, and what a test provokes is not held against it."""

from __future__ import annotations

import pytest

SERVED = {
    "http://corral.test/": "<h1>hello</h1>",
    "http://corral.test/uncaught": "<script>setTimeout(() => { throw new Error('oops'); })</script>",
    "http://corral.test/console": "<script>console.error('oops')</script>",
    "http://corral.test/rejected": "<script>Promise.reject(new Error('oops'))</script>",
    "http://corral.test/inline": "<h1 onclick='oops()'>hello</h1>",
    "http://corral.test/missing": "<script src='/oops.js'></script>",
    "http://corral.test/stranger": "<img src='http://oops.example/a.png'>",
}
CSP = {"content-security-policy": "default-src 'self'"}


@pytest.fixture
def served(page):
    """A page that has what is above, without any server."""

    def answer(route):
        path = route.request.url
        headers = CSP if path.endswith("/inline") else {}
        if path in SERVED:
            route.fulfill(content_type="text/html", body=SERVED[path], headers=headers)
        else:
            route.fulfill(status=404, body="")

    page.route("**", answer)
    return page


@pytest.mark.parametrize("path", ["uncaught", "console", "rejected", "inline", "missing", "stranger"])
def test_what_goes_wrong_is_noticed(served, problems, path):
    served.goto(f"http://corral.test/{path}")
    served.wait_for_function("document.readyState === 'complete'")
    served.evaluate("new Promise(done => setTimeout(done))")
    found = problems.unexpected
    assert found, path
    assert any("oops" in each or "Content Security Policy" in each for each in found)
    problems.allow("oops|Content Security Policy")
    assert problems.unexpected == []


def test_a_page_without_faults_has_no_problems(served, problems):
    served.goto("http://corral.test/")
    assert served.inner_text("h1") == "hello"
    assert problems.all == []
