"""The page in a headless Chromium: no errors, and mouse, fingers and keys do what they promise."""

import pytest

from bayesprune.report import read_sources, render
from report import chromium
from report.small_run import LAYERS, write_run

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="no Chromium is installed; try apt install chromium")

EVIL = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
OPEN = "#weights details[open]"


@pytest.fixture(scope="module")
def browser():
    started = chromium.Chromium()
    yield started
    started.close()


@pytest.fixture(scope="module")
def file(run_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(*read_sources([run_folder])), "utf-8")
    return path


@pytest.fixture
def page(browser, file):
    """The report in a window of 1280 pixels, light; at the end nothing may have gone wrong."""
    browser.problems.clear()
    browser.size(1280)
    browser.prefers(color_scheme="light")
    browser.open(file)
    browser.run("localStorage.clear(); document.documentElement.style.scrollBehavior = 'auto'")
    browser.run("delete document.documentElement.dataset.theme")
    browser.settle()
    yield browser
    assert browser.problems == []


def image(page, selector):
    """What a canvas shows."""
    return page.run(f"document.querySelector('{selector}').toDataURL()")


def text(page, selector):
    return page.run(f"document.querySelector('{selector}').textContent")


def middle(page, selector, across=0.5, down=0.5):
    """Scroll an element into view; the place of a point in it."""
    page.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    page.settle()
    box = page.run(f"(({{x, y, width, height}}) => [x, y, width, height])"
                   f"(document.querySelector('{selector}').getBoundingClientRect())")  # fmt: skip
    return box[0] + across * box[2], box[1] + down * box[3]


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fits_every_screen(page, file, width, theme):
    page.size(width, phone=width < 500)
    page.prefers(color_scheme=theme)
    page.open(file)
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.settle()
    assert page.run("document.documentElement.scrollWidth - innerWidth") <= 0
    outside = """[...document.querySelectorAll('main *')].filter((one) => !one.closest('.scroll, svg') &&
        one.getBoundingClientRect().right > innerWidth + 1).length"""
    assert page.run(outside) == 0
    dark = page.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert dark == (theme == "dark")
    small = "[...document.querySelectorAll('.plot svg')].filter((one) => one.getBoundingClientRect().width)"
    # Letters keep their size: the chart for this width is shown, and only that one.
    assert page.run(f"{small}.every((one) => one.classList.contains('{'narrow' if width < 500 else 'wide'}'))")


def test_slider_moves_the_iteration(page):
    middle(page, ".frames")
    assert text(page, ".frames output") == "6"
    last = image(page, ".frames canvas")
    page.run("document.querySelector('.frames input').focus()")
    page.press("ArrowLeft")
    assert text(page, ".frames output") == "5"
    assert page.run("document.querySelector('.frames input').getAttribute('aria-valuetext')") == "iteration 5"
    assert image(page, ".frames canvas") != last
    page.press("Home")
    assert text(page, ".frames output") == "1"
    page.press("End")
    assert image(page, ".frames canvas") == last
    page.run("""(() => { const one = document.querySelector('.frames select');
        one.selectedIndex = 2; one.dispatchEvent(new Event('change')); })()""")
    assert image(page, ".frames canvas") != last


def test_pointer_reads_a_message(page):
    x, y = middle(page, ".frames .panel:nth-child(2) canvas", 10.5 / 40, 3.5 / 30)
    page.mouse("mouseMoved", x, y)
    # Iteration 6, layer 0: 10 + 120 + part, see messages_of.
    assert text(page, ".frames .readout") == (
        f"row 3, column 10: weights {131 / 255:.2f}, neighbours {130 / 255:.2f}, together {132 / 255:.2f}"
    )


def test_play_runs_to_the_end(page):
    page.run("document.querySelector('.frames [data-do=play]').click()")
    assert text(page, ".frames output") == "1"
    page.run("new Promise((done) => setTimeout(done, 1500))")
    assert text(page, ".frames output") == "6"
    assert text(page, ".frames [data-do=play]") == "Play"


def test_theme_button(page):
    before = image(page, f"{OPEN} canvas")
    page.run("document.getElementById('theme').focus()")
    page.press("Enter")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert image(page, f"{OPEN} canvas") != before
    page.press("Enter")
    assert image(page, f"{OPEN} canvas") == before


def test_matrix_by_keys(page):
    canvases = [f"{OPEN} .panel:nth-child({place}) canvas" for place in (1, 2, 3)]
    before = [image(page, one) for one in canvases]
    page.run(f"document.querySelector('{canvases[0]}').focus()")
    page.press("+")
    page.press("+")
    zoomed = [image(page, one) for one in canvases]
    assert zoomed[0] != before[0]
    assert zoomed[1] != before[1]  # before and after zoom together
    assert zoomed[2] == before[2]  # it has other rows and columns
    page.press("ArrowRight")
    assert image(page, canvases[0]) != zoomed[0]
    page.press("ArrowLeft")
    assert image(page, canvases[0]) == zoomed[0]
    assert text(page, f"{OPEN} .readout") != ""
    page.press("0")
    assert [image(page, one) for one in canvases] == before


def test_matrix_by_buttons(page):
    page.run("document.querySelectorAll('#weights details').forEach((one, at) => { one.open = at === 2; })")  # fc1
    page.settle()
    canvas = f"{OPEN} .panel:nth-child(3) canvas"
    before = image(page, canvas)
    for wanted in ("in", "clusters", "support"):
        page.run(f"document.querySelector('{OPEN} [data-do={wanted}]').click()")
        assert image(page, canvas) != before
        pressed = page.run(f"document.querySelector('{OPEN} [data-do=clusters]').ariaPressed")
        assert pressed == ("true" if wanted == "in" else "false")
    for wanted in ("clusters", "support", "all"):
        page.run(f"document.querySelector('{OPEN} [data-do={wanted}]').click()")
    assert image(page, canvas) == before
    page.run(f"document.querySelector('{OPEN} [data-do=clusters]').click()")
    assert image(page, canvas) != before  # without the frame


def test_matrix_by_wheel_and_mouse(page):
    canvas = f"{OPEN} canvas"
    x, y = middle(page, canvas)
    before, scrolled = image(page, canvas), page.run("scrollY")
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120)
    page.settle()
    assert image(page, canvas) == before  # the page scrolls, unless the matrix was clicked
    x, y = middle(page, canvas)
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.mouse("mouseReleased", x, y, button="left", clickCount=1)
    scrolled = page.run("scrollY")
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-240)
    page.settle()
    zoomed = image(page, canvas)
    assert zoomed != before
    assert page.run("scrollY") == scrolled
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    page.mouse("mouseMoved", x - 60, y, button="left", buttons=1)
    page.mouse("mouseReleased", x - 60, y, button="left", clickCount=1)
    assert image(page, canvas) != zoomed


def test_matrix_by_two_fingers(page):
    page.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    canvas = f"{OPEN} canvas"
    x, y = middle(page, canvas)
    before = image(page, canvas)
    page.touch("touchStart", (x - 20, y), (x + 20, y))
    page.touch("touchMove", (x - 80, y), (x + 80, y))
    page.touch("touchEnd")
    page.settle()
    assert image(page, canvas) != before
    page.call("Emulation.setTouchEmulationEnabled", enabled=False)


def test_pointer_reads_a_weight(page, run_folder):
    layer = read_sources([run_folder])[0][0].layers[0]
    weight = float(layer.before[4, 0, 2, 3])  # in the matrix: row 4, column 13 of 6 x 25
    x, y = middle(page, f"{OPEN} canvas", 13.5 / 25, 4.5 / 6)
    page.mouse("mouseMoved", x, y)
    place, _, value = text(page, f"{OPEN} .readout").partition(": ")
    assert place == "output 4, input 0, tap 2, 3"
    largest = float(layer.before.abs().max())
    assert abs(float(value.replace("−", "-")) - weight) < largest / 100
    x, y = middle(page, f"{OPEN} .panel:nth-child(2) canvas", 0.5, 5.5 / 6)  # a dead output
    page.mouse("mouseMoved", x, y)
    assert text(page, f"{OPEN} .panel:nth-child(2) .readout").endswith(": dead")


def test_folded_layers_are_drawn_when_they_open(page):
    page.run("document.querySelectorAll('#weights details')[2].open = true")
    page.settle()
    page.settle()
    canvas = "document.querySelectorAll('#weights details')[2].querySelector('canvas')"
    size = page.run(f"[{canvas}.width, {canvas}.height]")
    assert size[0] > 300 - 1
    assert size[1] > 100


def test_chart_values_by_keys_and_pointer(page):
    chart = "#convergence svg.wide"
    middle(page, chart)
    page.run(f"document.querySelector('{chart}').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    lines = text(page, "#tip").split("\n")
    assert lines[0] == "outer iteration 2"
    assert lines[1:] == [f"{name}: {float(f'{0.25 / (place + 1):.3g}'):g}" for place, name in enumerate(LAYERS)]
    page.press("Escape")
    assert page.run("document.getElementById('tip').hidden")
    x, y = middle(page, "#speed svg.wide [data-tip]")
    page.mouse("mouseMoved", x, y)
    assert "dense in PyTorch" in text(page, "#tip")
    x, y = middle(page, chart, 0.999)
    page.mouse("mouseMoved", x, y)
    assert text(page, "#tip").startswith("outer iteration 6")


def test_tab_reaches_everything_and_the_focus_is_seen(page):
    page.run("document.activeElement.blur(); scrollTo(0, 0)")
    page.press("Tab")
    assert text(page, ":focus") == "Skip to the summary"
    assert page.run("document.querySelector(':focus').getBoundingClientRect().left") >= 0
    reached = set()
    for _ in range(80):
        page.press("Tab")
        kind = page.run("(({tagName, classList}) => `${tagName}.${classList}`)(document.activeElement)")
        if kind == "BODY.":
            break
        reached.add(kind)
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert {"BUTTON.", "A.", "svg.wide", "CANVAS.matrix", "SUMMARY.", "INPUT.", "SELECT.", "DIV.scroll"} <= reached


def test_less_motion(page, file):
    page.prefers(color_scheme="light", reduced_motion="reduce")
    page.open(file)
    assert page.run("getComputedStyle(document.querySelector('[data-do=play]')).display") == "none"


def test_printing_opens_all_and_restores(page, tmp_path):
    page.run("document.documentElement.dataset.theme = 'dark'")
    folded = page.run("document.querySelectorAll('details:not([open])').length")
    assert folded
    page.run("""window.seen = {}; addEventListener('beforeprint', () => {
        window.seen = { folded: document.querySelectorAll('details:not([open])').length,
                        theme: document.documentElement.dataset.theme }; })""")
    page.pdf(tmp_path / "print.pdf")
    assert page.run("window.seen") == {"folded": 0, "theme": "light"}
    assert page.run("document.querySelectorAll('details:not([open])').length") == folded
    assert page.run("document.documentElement.dataset.theme") == "dark"
    assert (tmp_path / "print.pdf").read_bytes().startswith(b"%PDF")


def test_text_from_files_does_not_run(page, tmp_path):
    folder = write_run(tmp_path / "evil", name=EVIL, messages=False)
    path = tmp_path / "evil.html"
    path.write_text(render(*read_sources([folder, folder / "network.safetensors"])), "utf-8")
    page.open(path)
    page.settle()
    assert "taken" in page.run("document.title")  # as text
    assert page.run("document.title") != "taken"
    assert page.run("document.querySelectorAll('img').length") == 0
