"""The page in a real browser: drawn, quiet, sortable, copyable, in light and dark, on a phone and on a wide screen.

Needs Chromium and its driver (Debian: `apt-get install chromium chromium-driver`); skipped where there is none.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest

from benchmark.report import write_report
from tests.data.campaigns import made

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium with its driver is on PATH"),
]

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
CASES = {
    "small": made.small,
    "simulated": lambda: ([made.simulated(r) for r in made.small()[0]], made.small()[1]),
    "nothing": lambda: ([], {}),
    "one point": made.one_point,
    "all failed": made.all_failed,
    "many": made.many,
    "hostile": made.hostile,
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {
        name: write_report(folder / name.replace(" ", "-"), {}, *case())["report.html"].as_uri()
        for name, case in CASES.items()
    }


def show(browser, page, width=1600, theme="light"):
    """Open a page and wait until its charts are drawn; returns what the console and the network log had to say."""
    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    browser.get("about:blank")
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(page)
    WebDriverWait(browser, 30).until(lambda b: b.execute_script("return document.documentElement.dataset.drawn"))
    console = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    return console, requested(browser)


def requested(browser):
    """Addresses asked for since the log was last read."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("case", list(CASES))
def test_every_case_is_drawn_quietly_and_fits(browser, pages, case, width):
    console, requests = show(browser, pages[case], width)
    assert console == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [pages[case]]
    plots = browser.find_elements(By.CSS_SELECTOR, ".plot")
    traces = "return [...document.querySelectorAll('.plot')].map((p) => p.querySelectorAll('.trace').length)"
    assert all(count > 0 for count in browser.execute_script(traces))
    assert (len(plots) >= 6) == (case in ("small", "simulated", "one point", "many", "hostile"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return window.stolen") is None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_lines_stand_out_from_the_paper(browser, pages, theme):
    show(browser, pages["simulated"], theme=theme)
    paper = rgb(browser, "paper")
    assert (luminance(paper) > 0.5) == (theme == "light")
    for name in ("ink", "muted", "accent", "good", "bad", "warn"):
        assert contrast(rgb(browser, name), paper) >= 4.5, name
    for place in range(1, 9):
        assert contrast(rgb(browser, f"s{place}"), paper) >= 3, place
    # The charts wear the page's colours.
    tick = browser.find_element(By.CSS_SELECTOR, ".plot .xtick text").value_of_css_property("fill")
    assert numbers(tick) == pytest.approx(rgb(browser, "muted"), abs=1)


def test_the_theme_can_be_chosen(browser, pages):
    show(browser, pages["small"], theme="light")
    light = rgb(browser, "paper")
    button = browser.find_element(By.ID, "theme")
    button.click(), button.click()
    assert button.text == "Theme: dark"
    assert luminance(rgb(browser, "paper")) < 0.1 < luminance(light)


def test_columns_sort_both_ways_and_missing_values_stay_last(browser, pages):
    show(browser, pages["small"])
    assert labels(browser) == ["ep8_tuned", "ep8", "pp8", "tp4ep2", "tp2ep4"]
    peak = head(browser, "Peak")
    peak.find_element(By.TAG_NAME, "button").click()
    assert peak.get_attribute("aria-sort") == "descending"
    assert labels(browser)[:3] == ["ep8_tuned", "ep8", "pp8"]
    peak.find_element(By.TAG_NAME, "button").click()
    assert peak.get_attribute("aria-sort") == "ascending"
    assert labels(browser)[:3] == ["pp8", "ep8", "ep8_tuned"]
    assert set(labels(browser)[3:]) == {"tp4ep2", "tp2ep4"}
    assert browser.get_log("browser") == []
    assert "lowest first" in browser.find_element(By.ID, "status").get_attribute("textContent")


def test_sorting_works_from_the_keyboard(browser, pages):
    show(browser, pages["small"])
    button = head(browser, "Configuration").find_element(By.TAG_NAME, "button")
    browser.execute_script("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    assert labels(browser) == ["tp4ep2", "tp2ep4", "pp8", "ep8_tuned", "ep8"]


def test_the_command_and_the_unit_are_copied(browser, pages):
    show(browser, pages["small"])
    allowed = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", allowed)
    for name in ("launch", "unit"):
        button = browser.find_element(By.CSS_SELECTOR, f"[data-copy={name}]")
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        WebDriverWait(browser, 5).until(lambda _, button=button: button.text == "Copied")
        wanted = browser.find_element(By.ID, name).get_attribute("textContent")
        read = "navigator.clipboard.readText().then(arguments[0], () => arguments[0](null))"
        assert browser.execute_async_script(read) == wanted


def test_the_reason_of_a_gap_shows_on_hover(browser, pages):
    show(browser, pages["small"])
    plot = browser.find_element(By.CSS_SELECTOR, "[data-figure=throughput]")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    cross = "return [...arguments[0].data].findIndex((t) => t.name === 'pp8: left out')"
    trace = browser.execute_script(cross, plot)
    where = browser.execute_script(
        "const p = arguments[0], l = p._fullLayout, b = p.getBoundingClientRect();"
        "return [b.left + l.xaxis._offset + l.xaxis.l2p(Math.log10(16)), b.top + l.yaxis._offset + l.yaxis.l2p(0)]",
        plot,
    )
    assert trace >= 0
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": where[0], "y": where[1]})
    told = WebDriverWait(browser, 5).until(
        lambda _: "".join(e.text for e in plot.find_elements(By.CSS_SELECTOR, ".hovertext"))
    )
    assert "A kernel was compiled inside the window." in told


def test_the_page_prints(browser, pages):
    show(browser, pages["simulated"], theme="dark")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 50_000


def test_pictures_and_tables_are_named_for_screen_readers(browser, pages):
    show(browser, pages["small"])
    for plot in browser.find_elements(By.CSS_SELECTOR, ".plot"):
        assert plot.get_attribute("role") == "img"
        described = plot.get_attribute("aria-describedby")
        assert browser.find_element(By.ID, described).text
    assert browser.execute_script("return document.querySelectorAll('thead th:not([scope])').length") <= 1
    assert (
        browser.execute_script("return document.querySelectorAll('tbody tr > :first-child:not(th[scope=row])').length")
        == 0
    )
    assert browser.execute_script("return document.documentElement.lang") == "en"


def labels(browser):
    return [e.text for e in browser.find_elements(By.CSS_SELECTOR, "#table tbody th code")]


def head(browser, name):
    heads = browser.find_elements(By.CSS_SELECTOR, "#table thead th")
    return next(h for h in heads if h.text.startswith(name))


def rgb(browser, name):
    script = (
        "const i = document.body.appendChild(document.createElement('i'));"
        "i.style.color = `var(--${arguments[0]})`; const c = getComputedStyle(i).color; i.remove(); return c"
    )
    return numbers(browser.execute_script(script, name))


def numbers(colour):
    return [float(n) for n in re.findall(r"[\d.]+", colour)[:3]]


def luminance(colour):
    """Relative luminance of sRGB, WCAG 2.2."""
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
