"""The site as `make site` built it, opened and searched in a real Chromium."""

from functools import partial
from http.server import SimpleHTTPRequestHandler
from urllib.parse import urljoin

import pytest
from support.http_server import serving
from support.paths import ROOT

SITE = ROOT / "build" / "site"
needs_site = pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="needs the site: make site")
pytestmark = [pytest.mark.long, needs_site]


@pytest.fixture
def address():
    with serving(partial(SimpleHTTPRequestHandler, directory=SITE)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_a_reader_finds_a_word_and_a_figure(browser, address):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{address}/index.html")
    page.wait_for_url("**/docs/site/index.html")
    for link in page.locator("article a[href$='.html']").evaluate_all("all => all.map(a => a.href)"):
        assert (SITE / link.removeprefix(f"{address}/")).is_file(), link
    pictures = "[...document.images].every((i) => i.complete && i.naturalWidth > 0)"
    assert page.evaluate(pictures)
    page.goto(f"{address}/search.html?q=slow+start")
    found = page.locator("#search-results li a", has_text="Explain why the remote server was slow").first
    found.click()
    page.wait_for_selector("h1:has-text('Explain why the remote server was slow')")
    assert page.locator("details.hide summary").count() > 5, "code is folded"
    permalink = page.locator("a[href='#figure-10-rate-or-rtt']")
    assert permalink.count() == page.locator("#figure-10-rate-or-rtt").count() == 1
    data = page.locator("a.download[href$='10_rate_or_rtt.csv']").get_attribute("href")
    assert page.request.get(urljoin(page.url, data)).text().startswith("panel,series,x,y")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") and problems == []
