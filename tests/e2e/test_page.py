"""The page at /: a person opens it, asks, reads, sees the figures move; by keyboard, on a phone, in light and dark.

Claims: the files need no key, load nothing from elsewhere and carry a policy that forbids it; the chat streams an answer
that the model gave and shows its stages; figures of the live panel follow the server's; faults are said in words. Method:
headless Chromium against the real daemon. INFERD_SCREENSHOTS=folder keeps the pictures, to be looked at."""
import os
import pathlib
import re

import pytest

import webdriver
from pace import until

needs_chromium = pytest.mark.skipif(webdriver.missing() is not None, reason=str(webdriver.missing()))
FILES = ["/", "/page.css", "/page.js"]


def picture(browser, tmp_path, name):
    folder = pathlib.Path(os.environ.get("INFERD_SCREENSHOTS", tmp_path))
    browser.screenshot(folder / f"{name}.png")


@pytest.fixture
def browser(tmp_path):
    made = webdriver.Browser(tmp_path / "profile")
    yield made
    made.close()


def without_key(daemon, path):
    with daemon.raw() as raw:
        raw.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return raw.answer("GET")


@pytest.mark.sanitizer
def test_files_need_no_key_and_load_nothing_from_elsewhere(start):
    daemon = start(keys=["secret"])
    for path in FILES:
        answer = without_key(daemon, path)
        assert answer.status == 200, path
        policy = answer.header("content-security-policy")
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.header("x-content-type-options") == "nosniff"
        assert not re.search(rb"https?:|//[a-z]|@import|url\((?!data:)", answer.body), path
    assert without_key(daemon, "/v1/models").status == 401


@pytest.mark.sanitizer
def test_the_page_can_be_switched_off(start):
    daemon = start(web_page="false")
    assert [daemon.get(path).status for path in FILES] == [404] * 3
    assert daemon.get("/health").status == 200


def ask(browser, text):
    """Types a question, sends it with Enter, waits for the end of the answer; returns its text."""
    before = browser.run("return document.querySelectorAll('.message.assistant .meta').length")
    browser.keys("#prompt", text + webdriver.ENTER)
    browser.wait("return document.querySelectorAll('.message.assistant .meta').length > arguments[0]"
                 " && !document.querySelector('.busy')", before, seconds=600)
    return browser.run("return [...document.querySelectorAll('.message.assistant .text')].at(-1).innerText")


@needs_chromium
def test_a_conversation_on_a_desktop(browser, cpu, tmp_path):
    browser.open(f"http://127.0.0.1:{cpu.port}/")
    browser.wait("return document.getElementById('state').textContent === 'ready'")
    assert browser.run("return document.activeElement.id") == "prompt", "the field has the focus at once"
    browser.run("document.getElementById('temperature').value = 0")
    browser.run("document.getElementById('max-tokens').value = 96")
    # the figures are of the last 5 s: gone again when a slow answer ends, so the page itself notes that they were there
    browser.run("setInterval(() => { window.told ||= document.getElementById('ttft-50').textContent !== '–'; }, 50)")
    answer = ask(browser, "What is the capital of France, and what is it known for?")
    assert "Paris" in answer
    second = ask(browser, "Write a short Python function that adds two numbers.")
    assert second and second != answer
    row = browser.run("return [...document.querySelector('#answers tr').children].slice(0, 6).map(c => c.innerText)")
    assert row[0] == "2" and int(row[1]) > 0 and int(row[2]) > 0 and 0 < int(row[3]) <= 96, "the 2nd turn reuses the 1st's KV"
    assert browser.run("return document.querySelectorAll('#answers .bar span').length") >= 4
    browser.wait("return window.told")
    ended = "return [...document.querySelectorAll('#requests tr')].map(r => [...r.children].map(c => c.innerText))"
    stats = cpu.get("/stats").json()
    newest = [e["id"][-5:] for e in stats["ended"][:2]]
    # the newest first, as /stats has them; the page asks once a second, and may have asked last while one still ran
    until(lambda: [row[0] for row in browser.run(ended)[:3:2]] == newest, "the page shows the last two that ended")
    rows = browser.run(ended)
    assert rows[0][1] == stats["ended"][0]["outcome"] and int(rows[0][4]) == stats["ended"][0]["completion_tokens"]
    assert browser.run("return document.querySelectorAll('#requests .bar span').length") >= 4
    picture(browser, tmp_path, "desktop-light")
    browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    dark = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 150, dark
    picture(browser, tmp_path, "desktop-dark")
    assert browser.complaints() == []


@needs_chromium
def test_a_phone_has_both_views_and_no_sideways_scrolling(browser, cpu, tmp_path):
    browser.cdp("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    browser.open(f"http://127.0.0.1:{cpu.port}/")
    browser.wait("return document.getElementById('state').textContent === 'ready'")
    browser.run("document.getElementById('max-tokens').value = 48")
    ask(browser, "Name three colours.")
    picture(browser, tmp_path, "phone-chat")
    sideways = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.run(sideways) == 0
    browser.click("[data-show=live]")
    assert browser.run("return document.getElementById('live').offsetParent !== null && "
                       "document.getElementById('chat').offsetParent === null")
    assert browser.run(sideways) == 0
    picture(browser, tmp_path, "phone-live")
    assert browser.complaints() == []


@needs_chromium
def test_everything_can_be_reached_by_keyboard(browser, cpu):
    browser.open(f"http://127.0.0.1:{cpu.port}/")
    seen = []
    for _ in range(14):
        browser.press(webdriver.TAB)
        seen.append(browser.run("const e = document.activeElement; return e.id || e.textContent.trim()"))
    assert {"send", "clear", "log", "prompt"} <= set(seen), seen
    assert any("Settings" in s for s in seen), seen


@needs_chromium
def test_escape_stops_an_answer_and_the_server_stops_computing(browser, start):
    daemon = start(step_us=20000)
    browser.open(f"http://127.0.0.1:{daemon.port}/")
    browser.run("document.getElementById('max-tokens').value = 2000")
    browser.keys("#prompt", "go on for long" + webdriver.ENTER)
    browser.wait("return document.querySelector('.busy .text')?.innerText.length > 5")
    browser.wait("return document.querySelector('#requests td:nth-child(2)')?.innerText === 'decode'")
    assert browser.text("#send") == "Stop"
    browser.press(webdriver.ESCAPE)
    browser.wait("return !document.querySelector('.busy')")
    assert browser.text("#send") == "Send"
    browser.wait("return document.getElementById('running').textContent === '0'", seconds=30)  # its own end is 40 s away


@needs_chromium
def test_faults_are_said_in_words(browser, start):
    daemon = start(keys=["open-sesame"])
    browser.open(f"http://127.0.0.1:{daemon.port}/")
    browser.wait("return document.getElementById('model').textContent === 'needs an API key'")
    browser.wait("return document.getElementById('stages').textContent.includes('API key')")
    assert browser.text("#rate") == "–" and without_key(daemon, "/stats").status == 401
    browser.keys("#prompt", "hello" + webdriver.ENTER)
    assert "key" in browser.wait("return document.getElementById('fault').textContent")
    assert browser.run("return document.activeElement.id") == "key"
    assert browser.run("return document.getElementById('prompt').value") == "hello", "the question is not lost"
    browser.press("open-sesame")
    browser.run("document.getElementById('max-tokens').value = 5")
    browser.keys("#prompt", webdriver.ENTER)
    browser.wait("return document.querySelector('.message.assistant .meta')")
    assert browser.text("#fault") == ""
    browser.wait("return document.getElementById('model').textContent === 'smollm2'")
    browser.wait("return document.querySelectorAll('#requests .bar').length === 1")
    daemon.terminate()
    browser.wait("return document.getElementById('state').textContent === 'not reachable'")
    browser.keys("#prompt", "anyone there?" + webdriver.ENTER)
    browser.wait("return document.getElementById('fault').textContent === 'The server cannot be reached.'")


@needs_chromium
def test_what_the_model_says_is_never_markup(browser, cpu):
    browser.open(f"http://127.0.0.1:{cpu.port}/")
    browser.run("document.getElementById('max-tokens').value = 4")
    ask(browser, "<img src=x onerror=document.title='broken'><script>document.title='broken'</script>")
    assert browser.run("return document.querySelectorAll('.message img, .message script').length") == 0
    assert "broken" not in browser.run("return document.title")
