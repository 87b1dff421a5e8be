"""A headless Chromium driven through chromedriver's WebDriver protocol: only what test_page.py needs."""
import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of an element's id
ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"


def missing():
    """What has to be installed first, or None."""
    lacking = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"not installed: {', '.join(lacking)} (Debian: chromium chromium-driver)" if lacking else None


class Browser:
    def __init__(self, profile, width=1280, height=900):
        for _ in range(5):  # the port that it picks for IPv4 may be taken for IPv6: then it ends
            if self._start_driver():
                break
        else:
            raise RuntimeError("chromedriver did not start in five attempts")
        args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": {"args": args, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.session = f"/session/{made['sessionId']}"

    def _start_driver(self):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       text=True)
        for line in self.driver.stdout:
            if "on port" in line and "success" in line:
                self.base = f"http://127.0.0.1:{int(line.rsplit('port', 1)[1].strip(' .' + chr(10)))}"
                return True
        self.driver.wait()
        return False

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def close(self):
        try:
            self._call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(60)

    def open(self, url):
        self._call("POST", f"{self.session}/url", {"url": url})

    def run(self, script, *args):
        return self._call("POST", f"{self.session}/execute/sync", {"script": script, "args": list(args)})

    def cdp(self, command, **params):
        """A command of the DevTools protocol: emulation of phones and colour schemes."""
        return self._call("POST", f"{self.session}/goog/cdp/execute", {"cmd": command, "params": params})

    def text(self, selector):
        return self.run("const e = document.querySelector(arguments[0]); return e && e.innerText;", selector)

    def keys(self, selector, text):
        found = self._call("POST", f"{self.session}/element", {"using": "css selector", "value": selector})
        self._call("POST", f"{self.session}/element/{found[ELEMENT]}/value", {"text": text})

    def press(self, text):
        """Keys to whatever has the focus."""
        active = self._call("GET", f"{self.session}/element/active")
        self._call("POST", f"{self.session}/element/{active[ELEMENT]}/value", {"text": text})

    def click(self, selector):
        found = self._call("POST", f"{self.session}/element", {"using": "css selector", "value": selector})
        self._call("POST", f"{self.session}/element/{found[ELEMENT]}/click", {})

    def wait(self, script, *args, seconds=120):
        """Until the script's value is true; returns it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = self.run(script, *args)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {script}\nthe page says:\n{self.text('body')}")

    def complaints(self):
        """What the console has at level SEVERE since the last call."""
        entries = self._call("POST", f"{self.session}/se/log", {"type": "browser"})
        return [e["message"] for e in entries if e["level"] == "SEVERE"]

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self._call("GET", f"{self.session}/screenshot")))
