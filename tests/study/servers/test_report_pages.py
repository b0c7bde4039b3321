"""The pages made from records, in a real browser."""

import base64

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from support.report_runs import PIXEL

from photodup.study.report.page import write_report
from photodup.study.report.runs_table import write_runs

pytestmark = pytest.mark.long


def open_page(browser, path, width, height):
    page = browser.new_context(viewport={"width": width, "height": height}, offline=True).new_page()
    page.asked = []
    page.on("request", lambda r: page.asked.append(r.url))
    page.goto(f"file://{path}")
    return page


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen_and_ask_for_nothing_else(browser, deck, width):
    for path in (write_report("a"), write_runs(["a", "b"])):
        page = open_page(browser, path, width, 800)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
        assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
        assert page.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
        page.context.close()


def test_a_received_notebook_brings_no_script_and_no_file_of_this_disk(browser, deck):
    (deck / "private.png").write_bytes(base64.b64decode(PIXEL) + b"PRIVATE")
    attack = "top.hacked = 1"
    prose = (
        f"<script>{attack}</script> <img src=x onerror='{attack}'> "
        f"<a href='javascript:{attack}'>a</a> <b style='x'>kept</b>\n\n"
        f"![p](images/../../private.png) <svg onload='{attack}'></svg> "
        f"<iframe src='data:text/html,<script>{attack}</script>'></iframe>"
    )
    script = f"<script>{attack}</script>"
    forms = {
        "text/html": f"<table><tr><td onclick='{attack}'>cell</td></tr></table>{script}",
        "image/png": f'x">{script}',
        "text/markdown": f"<style>*{{}}</style>{script}\n\n**said**\n\n| of |\n| ---: |\n| 3 |",
    }
    outputs = [new_output("display_data", {kind: data}) for kind, data in forms.items()]
    opening = new_markdown_cell("# 01 · Attack\n\n**Question.** ?\n\n" + prose)
    cells = [opening, new_code_cell("1", outputs=outputs)]
    nbformat.write(new_notebook(cells=cells), deck / "results" / "a" / "notebooks" / "01_one.ipynb")
    write_report("a")
    page = open_page(browser, deck / "results" / "a" / "notebooks" / "01_one.html", 1000, 800)
    text = page.content()
    assert page.evaluate("top.hacked") is None
    for gone in ("<script", "onerror", "onload", "onclick", "javascript:", "<iframe", "UFJJVkFURQ"):
        assert gone not in text, gone
    assert page.evaluate("document.body.innerText").count("kept") == 1 and "cell" in text
    assert "<strong>said" in text
    assert page.evaluate("getComputedStyle(document.querySelector('td.num')).textAlign") == "right"
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"top.hacked = 1\">')")
    page.wait_for_timeout(200)
    assert page.evaluate("top.hacked") is None, "the page's policy stops what sanitising might miss"
    page.context.close()


def test_the_browser_check_sees_a_page_that_is_too_wide_or_asks_for_a_font(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text('<body><div style="width:2000px">wide</div><img src="https://example.invalid/x.png">')
    page = open_page(browser, path, 390, 800)
    assert page.evaluate("document.documentElement.scrollWidth") > 390
    assert [url for url in page.asked if url.startswith("https:")]
    assert not page.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
    page.context.close()
