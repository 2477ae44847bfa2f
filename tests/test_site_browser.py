"""The built site in a headless Chromium: no errors, no requests to other servers, and a search that works offline."""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from browser import complaints, open_browser, require_browser, resize

require_browser()
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = ["index", "tutorials/first-model", "how-to/own-data", "reference/api", "reference/cli", "comparison"]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The directory of the site: that of `make docs`, or a build in which notebooks are not executed."""
    finished = ROOT / "docs" / "_build" / "html"
    if (finished / "searchindex.js").exists():
        return finished
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-D", "nb_execution_mode=off", str(ROOT / "docs"), str(directory)]
    subprocess.run(command, check=True)
    return directory


@pytest.fixture(scope="module")
def site(built):
    """The address of the site."""
    handler = functools.partial(_Quiet, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        yield driver


def requests(browser) -> list[str]:
    """The addresses that the page has asked for."""
    script = "return performance.getEntries().map(entry => entry.name).filter(name => name.includes('://'))"
    return browser.execute_script(script)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages(browser, site, width, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    resize(browser, width)
    for page in PAGES:
        browser.get(f"{site}/{page}.html")
        assert browser.find_element(By.TAG_NAME, "h1").text
        assert complaints(browser) == [], page
        assert [address for address in requests(browser) if not address.startswith(site)] == [], page
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
        color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        channels = [float(part) for part in color[color.index("(") + 1 : -1].split(",")[:3]]
        assert (sum(channels) < 200) == (scheme == "dark"), (page, color)
        if place := os.environ.get("BERTVISION_SCREENSHOTS"):
            browser.save_screenshot(f"{place}/{page.replace('/', '-')}-{width}-{scheme}.png")


def test_search_works_without_a_server_elsewhere(browser, site):
    browser.get(f"{site}/search.html?q=calibration")

    def results():
        return browser.find_elements(By.CSS_SELECTOR, "#search-results li a")

    WebDriverWait(browser, 20).until(lambda _: results())
    assert any("Calibration" in result.text for result in results())
    assert [address for address in requests(browser) if not address.startswith(site)] == []
    assert complaints(browser) == []


def test_no_file_names_another_server_as_a_source(built):
    """Scripts, styles, fonts and pictures are all part of the site."""
    pattern = re.compile(
        r"""<(?:script|img|iframe|source)[^>]+src=["']https?:|<link[^>]+rel=["']stylesheet["'][^>]+href=["']https?:"""
        r"""|url\(["']?https?:|@import ["']https?:"""
    )
    files = [*built.rglob("*.html"), *built.rglob("*.css")]
    assert len(files) > 50
    assert [str(path.relative_to(built)) for path in files if pattern.search(path.read_text())] == []
