"""The demo page in a headless Chromium."""

import os
import socket
import time

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from browser import complaints, open_browser, require_browser
from serving.process import serving

require_browser()

PASSAGE = "the 🗼 tower in rome was made at ann very good story"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def find(browser, css: str):
    return browser.find_element(By.CSS_SELECTOR, css)


def wait(browser, condition, seconds: float = 30):
    return WebDriverWait(browser, seconds, poll_frequency=0.05).until(lambda _: condition())


def shown(browser, css: str) -> bool:
    return find(browser, css).is_displayed()


def open_page(browser, url: str, model: str = "") -> None:
    browser.get("about:blank")
    browser.get(f"{url}/#{model}")
    wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#inputs textarea"))


def type_in(browser, *texts: str) -> None:
    for place, text in enumerate(texts):
        area = find(browser, f"#input-{place}")
        browser.execute_script("arguments[0].value = arguments[1]", area, text)  # the driver types no emoji
        area.send_keys(" ")
        area.send_keys(Keys.BACKSPACE)


def test_question_answering(browser, server, answers_result):
    open_page(browser, server.url, "towers")
    type_in(browser, "who made the tower", PASSAGE)
    find(browser, "#submit").click()
    wait(browser, lambda: shown(browser, "#result"))
    assert find(browser, "#context").text == PASSAGE
    status, found = server.ask({"items": [["who made the tower", PASSAGE]], "nbest": 5, "bert": True})
    (said,) = found["answers"]["towers"]
    assert status == 200
    marked = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#context mark.first")]
    assert marked == ([said["answer"]] if said["answer"] else [])
    assert find(browser, "#head-answer .prediction").text == (said["answer"] or "No answer")
    assert find(browser, "#bert-answer .prediction").text == (said["bert"]["answer"] or "No answer")
    assert f"{100 * said['null_probability']:.1f} %" in find(browser, "#head-answer").text
    second = next(each for each in said["nbest"] if each["text"] != said["answer"])
    assert (second["text"] or "no answer") in find(browser, "#head-answer .second").text
    assert "ms on the server" in find(browser, "#timing").text and "1 forward pass." in find(browser, "#timing").text
    assert "layers 0, 1, 2, 3 of 0 to 3" in find(browser, "#layers").text
    assert complaints(browser) == []


def test_classification(browser, server):
    open_page(browser, server.url, "towers")
    choice = Select(find(browser, "#model"))
    name = next(option.text for option in choice.options if option.text.startswith("reviews-adapter"))
    choice.select_by_visible_text(name)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#inputs textarea")) == 1
    type_in(browser, "the film was great")
    find(browser, "#input-0").send_keys(Keys.CONTROL, Keys.ENTER)
    wait(browser, lambda: shown(browser, "#result"))
    time.sleep(0.5)  # bars grow
    assert len(browser.find_elements(By.CSS_SELECTOR, "#head-answer .bars li")) == 2
    bars = browser.find_elements(By.CSS_SELECTOR, "#head-answer .bars li")
    for bar in bars:
        fill, track = (bar.find_element(By.CSS_SELECTOR, css).rect["width"] for css in (".fill", ".track"))
        share = float(bar.find_element(By.CSS_SELECTOR, ".number").text.removesuffix(" %")) / 100
        assert fill / track == pytest.approx(share, abs=0.02)
    assert find(browser, "#head-answer .prediction").text in ("pos", "neg") and not shown(browser, "#context-block")
    assert complaints(browser) == []


def test_many_classes_and_long_contexts(browser, server):
    open_page(browser, server.url, "towers")
    browser.execute_script(
        "const rows = [...Array(77)].map((_, i) => [`card_arrival ${i}`, 1 / (i + 1)]);"
        "document.querySelector('main').append(createBars(rows));"
    )
    rows = browser.find_elements(By.CSS_SELECTOR, "main > div .bars li")
    assert [row.is_displayed() for row in rows] == [True] * 5 + [False] * 72
    assert rows[0].find_element(By.CSS_SELECTOR, ".name").text == "card_arrival 0"  # as the class is called
    find(browser, "main > div .more").click()
    assert all(row.is_displayed() for row in rows)
    browser.execute_script(
        "byId('result').hidden = false; byId('context-block').hidden = false;"
        "highlight([...'word '.repeat(2000)], [{start: 7000, end: 7004, kind: 'first'}]); scrollToMark();"
    )
    box, mark = find(browser, "#context").rect, find(browser, "#context mark").rect
    assert box["height"] < 400 and box["y"] <= mark["y"] <= box["y"] + box["height"]


def test_examples_and_keyboard(browser, server):
    open_page(browser, server.url, "towers")
    browser.find_elements(By.CSS_SELECTOR, "#examples button")[0].click()
    wait(browser, lambda: shown(browser, "#result"))
    open_page(browser, server.url, "towers")
    type_in(browser, "who made the tower", PASSAGE)
    find(browser, "#input-1").send_keys(Keys.TAB)  # the next thing in order is the button
    assert browser.switch_to.active_element.get_attribute("id") == "submit"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait(browser, lambda: shown(browser, "#result"))
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('textarea, select')].filter(e => !e.labels.length).length"
    )
    assert unnamed == 0


def test_errors_are_shown_and_announced(browser, server):
    open_page(browser, server.url, "towers")
    type_in(browser, "who", " ")
    find(browser, "#input-0").send_keys(Keys.CONTROL, Keys.ENTER)
    wait(browser, lambda: shown(browser, "#error"))
    assert "Enter a text" in find(browser, "#error").text and find(browser, "#error").get_attribute("role") == "alert"
    type_in(browser, "who made it " * 30, "ann")
    find(browser, "#submit").click()
    wait(browser, lambda: "shorten the question" in find(browser, "#error").text)


def test_overload_is_shown_and_the_next_attempt_succeeds(browser, answers_result, tmp_path):
    with serving(tmp_path, answers_result.best.directory, "--max-requests", "1") as process:
        open_page(browser, process.url)
        type_in(browser, "who made the tower", PASSAGE)
        host, port = process.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as busy:  # a request that takes the only place
            busy.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            time.sleep(0.5)
            find(browser, "#submit").click()
            wait(browser, lambda: shown(browser, "#error"))
            assert "overloaded" in find(browser, "#error").text and not shown(browser, "#result")
        time.sleep(0.5)
        find(browser, "#submit").click()
        wait(browser, lambda: shown(browser, "#result"))
        assert not shown(browser, "#error")
        process.stop()
        find(browser, "#submit").click()
        wait(browser, lambda: "cannot be reached" in find(browser, "#error").text)


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_layout(browser, server, width, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        open_page(browser, server.url, "towers")
        type_in(browser, "who made the tower", PASSAGE + " x" * 40 + "y" * 300)
        find(browser, "#submit").click()
        wait(browser, lambda: shown(browser, "#result"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, dark[4:-1].split(","))) < 200) == (scheme == "dark")
        if place := os.environ.get("BERTVISION_SCREENSHOTS"):
            browser.save_screenshot(f"{place}/{width}-{scheme}.png")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
