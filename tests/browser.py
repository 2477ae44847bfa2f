"""A real browser for pages: Debian's Chromium without a window, driven by its own driver."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def require_browser() -> None:
    """Skip a module where there is none, and say so."""
    if not (CHROMIUM and DRIVER):
        pytest.skip(
            "LOUD: no chromium or chromedriver here, so the page was not tried in a browser; "
            "apt-get install chromium chromium-driver",
            allow_module_level=True,
        )


@contextmanager
def open_browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """Open a browser with a fresh profile."""
    options = Options()
    options.binary_location = str(CHROMIUM)
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    for word in words:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_window_size(1200, 1400)
    try:
        yield driver
    finally:
        driver.quit()


def complaints(browser: webdriver.Chrome) -> list[str]:
    """What the browser's console says is wrong: scripts that fail, a policy that is broken."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def resize(browser: webdriver.Chrome, width: int, height: int = 1200) -> None:
    """Lay the page out as a screen of this width would; a window cannot be made as narrow as a phone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
