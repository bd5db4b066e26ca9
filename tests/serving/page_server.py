"""A static server of a folder, and Chromium, with a page that reports what it sees."""

import contextlib
import functools
import http.server
import json
import queue
import shutil
import subprocess
import threading

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Opens the exported page in a frame, gives it the pictures in turn, each right after the first one, and sends what it
# then says to the server.
_PROBE = """<!doctype html><iframe id="frame" src="index.html" width="1200" height="900"></iframe><script type="module">
const inside = id => document.getElementById("frame").contentDocument?.getElementById(id);
const until = async test => { while (!test()) await new Promise(resolve => setTimeout(resolve, 50)); };
const file = async name => new File([await (await fetch(name)).blob()], name);
const give = picture => {
  const data = new DataTransfer();
  data.items.add(picture);
  inside("file").files = data.files;
  inside("file").dispatchEvent(new Event("change"));
};
const report = text => fetch("/report", {method: "POST", body: JSON.stringify(text)});
try {
  await until(() => inside("engine")?.textContent || inside("status")?.querySelector(".problem"));
  const seen = [{status: inside("status").textContent, engine: inside("engine").textContent}];
  for (const name of PICTURES) {
    inside("status").textContent = inside("times").textContent = "";
    for (const each of await Promise.all([PICTURES[0], name].map(file))) give(each);
    await until(() => inside("times").textContent || inside("status").querySelector(".problem"));
    const rows = [...inside("classes").children].map(row => [...row.children].map(cell => cell.textContent));
    const boxes = inside("boxes").querySelectorAll("div").length, mask = !inside("segments").hidden;
    seen.push({status: inside("status").textContent, rows, boxes, mask});
  }
  await report(seen);
} catch (error) { await report(String(error)); }
</script>"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments, reports, **options):
        self.reports = reports
        super().__init__(*arguments, **options)

    def do_POST(self):
        self.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def end_headers(self):
        # As the page's own service worker does, from its second load on.
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def _serving(folder, reports):
    handler = functools.partial(_Handler, directory=str(folder), reports=reports)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def seen(folder, pictures, profile):
    """What a page says about pictures, {name: bytes}: its state when loaded, and then for each picture a dict.

    Args:
        folder: the exported page; the pictures are added to it.
        pictures: files that the page is given in turn.
        profile: an empty folder for Chromium's own files.
    """
    for name, data in pictures.items():
        (folder / name).write_bytes(data)
    (folder / "probe.html").write_text(_PROBE.replace("PICTURES", json.dumps([*pictures])))
    reports: queue.Queue = queue.Queue()
    with _serving(folder, reports) as address:
        command = [CHROMIUM, "--headless", "--no-sandbox", f"--user-data-dir={profile}", f"{address}/probe.html"]
        browser = subprocess.Popen(
            [*command[:1], "--disable-gpu", "--remote-debugging-port=0", *command[1:]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return reports.get(timeout=240)
        finally:
            browser.kill()
            browser.wait()
