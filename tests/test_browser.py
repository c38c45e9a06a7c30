"""A report in a real browser: Debian's chromium, driven by Selenium. Skipped where either is missing."""

import json
import shutil

import pytest

from dubnb.report import page
from dubnb.report.page import Section, Table
from tests.page_tools import example_page
from tests.sweep_tools import wait_until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"
)
WIDTHS = {"phone": (390, 844), "desktop": (1280, 900)}
pytestmark = pytest.mark.needs_jit


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not CHROMIUM or not DRIVER:
        pytest.skip("chromium and chromedriver are not on PATH (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    exceptions = pytest.importorskip("selenium.common.exceptions")
    try:
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    except exceptions.SessionNotCreatedException as error:
        pytest.skip(f"chromium does not start on this machine: {error.msg}")
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page.render(example_page()), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, report):
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(report.as_uri())
    return browser


def _requests(browser):
    """Addresses that the browser asked for."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


def test_nothing_is_fetched_and_nothing_complains(opened, report):
    assert opened.title.startswith("dubnb")
    assert _requests(opened) == [report.as_uri()]
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [entry for entry in opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_the_screen(opened, width, tmp_path):
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": WIDTHS[width][0], "height": WIDTHS[width][1], "deviceScaleFactor": 1, "mobile": width == "phone"},
    )
    sizes = opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1] == WIDTHS[width][0]  # only tables scroll sideways, inside their frame
    sizes = opened.execute_script(
        """
        return [...document.querySelectorAll("figure svg text")].map((text) => {
          const svg = text.ownerSVGElement;
          const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
          return parseFloat(getComputedStyle(text).fontSize) * scale;
        });
        """
    )
    assert min(sizes) > 7.5 and len(sizes) > 20  # figures stay readable
    assert opened.save_screenshot(str(tmp_path / f"{width}.png"))


def test_a_wide_table_scrolls_and_its_first_column_stays(browser, tmp_path):
    """On a phone the shade at the right edge says that the table goes on; it is gone at the end."""
    table = Table("", ["system", *"abcdefgh"], [["base", *([0.123456] * 8)]])
    wide = example_page(name="x")._replace(sections=[Section("", [table])])
    (tmp_path / "wide.html").write_text(page.render(wide), encoding="utf-8")
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get((tmp_path / "wide.html").as_uri())
    frame = browser.find_element("css selector", ".scroll")
    scrolled = browser.execute_script("arguments[0].scrollLeft = 10000; return arguments[0].scrollLeft", frame)
    first = browser.find_element("css selector", "tbody td")
    assert scrolled > 50 and first.rect["x"] == pytest.approx(frame.rect["x"], abs=2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark(opened, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    brightness = opened.execute_script(
        """
        const light = (colour) => colour.match(/\\d+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0) / 765;
        const style = getComputedStyle(document.body);
        const drawn = getComputedStyle(document.querySelector('figure svg text')).fill;
        return [light(style.backgroundColor), light(style.color), light(drawn)];
        """
    )
    back, ink, drawn = brightness
    assert (back > 0.9) if scheme == "light" else (back < 0.15)
    assert abs(back - ink) > 0.6 and abs(back - drawn) > 0.3


def test_an_index_leads_to_another_page(opened, report):
    (report.parent / "other.html").write_text("<title>other</title>", encoding="utf-8")
    opened.find_element("css selector", "article a").click()
    wait_until(lambda: opened.title == "other")


def test_names_from_data_run_nothing(opened):
    assert opened.execute_script("return window.attacked") is None
    assert "<script>" in opened.find_element("tag name", "dl").text  # shown as text
