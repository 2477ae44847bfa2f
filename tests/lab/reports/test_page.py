"""The report in a real browser: it draws, sorts, asks nothing of the network, and fits a phone."""

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from browser import complaints, open_browser, require_browser, resize

require_browser()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(params=[1200, 390], ids=["desktop", "phone"])
def opened(request, browser, page):
    resize(browser, request.param)
    browser.get(page.as_uri())
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    WebDriverWait(browser, 60).until(lambda _: all(chart.find_elements(By.CSS_SELECTOR, "svg") for chart in charts))
    return browser


def test_every_chart_has_marks_and_nothing_complains(opened):
    charts = opened.find_elements(By.CSS_SELECTOR, ".chart")
    assert len(charts) >= 4
    for chart in charts:
        assert chart.find_elements(By.CSS_SELECTOR, "svg .mark-symbol path"), chart.get_attribute("aria-label")
    assert complaints(opened) == [] and "broken" not in opened.title


def test_no_request_leaves_the_machine(opened):
    names = opened.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
    assert names == []


def test_it_fits_the_screen(opened):
    width, seen = opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width <= seen
    for chart in opened.find_elements(By.CSS_SELECTOR, ".chart svg"):
        assert chart.rect["width"] <= seen


def test_tables_sort_by_number_and_by_name(opened):
    table = opened.find_element(By.XPATH, "//h3[starts-with(., 'zoo')]/following::table[1]")
    heads = [head.text for head in table.find_elements(By.CSS_SELECTOR, "th button")]

    def column(name):
        at = heads.index(name)
        rows = table.find_elements(By.CSS_SELECTOR, "tbody tr")
        return [row.find_elements(By.CSS_SELECTOR, "td")[at].get_attribute("data-v") for row in rows]

    def press(name):
        button = table.find_elements(By.CSS_SELECTOR, "th button")[heads.index(name)]
        opened.execute_script("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", button)
        button.click()

    press("score")
    scores = [float(value) for value in column("score")]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) > 1
    press("score")
    assert [float(value) for value in column("score")] == sorted(scores)
    press("model")
    names = column("model")
    assert names == sorted(names, key=str.lower, reverse=True)
