"""The pages made from records, in a real browser."""

import pytest
from support.report_runs import add_notebooks, two_runs

from photodup.study.report.compare_page import write_comparison
from photodup.study.report.slides import write_slides
from photodup.study.report.write import write_reports

pytestmark = pytest.mark.long


@pytest.fixture
def project(tmp_path, monkeypatch):
    return two_runs(tmp_path, monkeypatch)


@pytest.fixture
def deck(project):
    return add_notebooks(project)


def open_page(browser, path, width, height):
    page = browser.new_context(viewport={"width": width, "height": height}, offline=True).new_page()
    page.asked = []
    page.on("request", lambda r: page.asked.append(r.url))
    page.goto(f"file://{path}")
    return page


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen_and_ask_for_nothing_else(browser, deck, width):
    for path in (write_reports(["a"]), write_slides("a"), write_comparison(["a", "b"])):
        page = open_page(browser, path, width, 800)

        assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
        assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
        assert page.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
        page.context.close()


def test_the_browser_check_sees_a_page_that_is_too_wide_or_asks_for_a_font(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text('<body><div style="width:2000px">wide</div><img src="https://example.invalid/x.png">')
    page = open_page(browser, path, 390, 800)

    assert page.evaluate("document.documentElement.scrollWidth") > 390
    assert [url for url in page.asked if url.startswith("https:")]
    assert not page.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
    page.context.close()


def test_the_deck_turns_its_pages_by_key_and_by_link_and_prints_one_slide_a_page(browser, deck):
    page = open_page(browser, write_slides("a"), 1280, 720)

    def at():
        page.wait_for_timeout(900)  # smooth scrolling
        return page.evaluate(
            "[...document.querySelectorAll('.slide')].findIndex(s => Math.abs(s.getBoundingClientRect().top) < 3)"
        )

    assert at() == 0
    page.keyboard.press("PageDown")
    assert at() == 1
    page.locator(".slide >> nth=1").get_by_label("next slide").click()
    assert at() == 2
    pdf = page.pdf(prefer_css_page_size=True)
    assert pdf.count(b"/Type /Page\n") == 5
    page.context.close()
