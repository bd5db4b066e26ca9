"""The parts of Kaggle's API that kagglehub asks for models, on this machine: who has the token, variations with their
versions.
"""

import contextlib
import http.server
import json
import threading

TOKEN = "KGAT_of_anna"


class Kaggle:
    """The server.

    Attributes:
        address: of it.
        models: {"owner/model": whether it is private}.
        variations: {"owner/model/framework/variation": [(licence, notes, {path: bytes}), ...]}, a version each.
        blobs: {token: (file name, bytes)} of uploaded files.
        fails: {name of a request: the status that it is answered with}.
    """

    def __init__(self):
        self.models, self.variations, self.blobs, self.fails = {}, {}, {}, {}
        handler = type("Handler", (_Handler,), {"kaggle": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def files(self, directory, prefix=""):
        """{path: bytes} of a tree of tokens."""
        found = {
            prefix + self.blobs[file["token"]][0]: self.blobs[file["token"]][1] for file in directory.get("files", ())
        }
        for inner in directory.get("directories", ()):
            found |= self.files(inner, f"{prefix}{inner['name']}/")
        return found


@contextlib.contextmanager
def serving(monkeypatch, cache, token=TOKEN):
    """A Kaggle that kagglehub talks to, with an empty cache and `token`, or None."""
    from kagglehub import clients
    from kagglesdk import kaggle_env

    monkeypatch.setattr(clients, "get_user_agent", lambda: "kagglehub")  # reads the source of the whole stack
    kaggle = Kaggle()
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
    monkeypatch.setitem(kaggle_env._env_to_endpoint, kaggle_env.KaggleEnv.LOCAL, kaggle.address)
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(cache))
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(cache / "none"))
    monkeypatch.setenv("HOME", str(cache))
    for name in ("KAGGLE_USERNAME", "KAGGLE_KEY", "KAGGLE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    if token:
        monkeypatch.setenv("KAGGLE_API_TOKEN", token)
    try:
        yield kaggle
    finally:
        kaggle.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    kaggle: Kaggle

    def _answer(self, status, body=b""):
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        data, token = self.rfile.read(int(self.headers["Content-Length"])), self.path.rsplit("/", 1)[-1]
        self.kaggle.blobs[token] = (self.kaggle.blobs[token][0], data)
        self._answer(200)

    def do_POST(self):
        asked, name = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.path.rsplit("/", 1)[-1]
        if name in self.kaggle.fails:
            return self._answer(self.kaggle.fails[name], {"message": "not today"})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"code": 401, "message": "Unauthenticated"})
        status, body = getattr(self, name)(asked)
        self._answer(status, body)

    def _variation(self, asked):
        framework = asked.get("framework") or asked["body"]["framework"]
        slug = asked.get("instanceSlug") or asked["body"]["instanceSlug"]
        return f"{asked['ownerSlug']}/{asked['modelSlug']}/{framework.removeprefix('MODEL_FRAMEWORK_').lower()}/{slug}"

    def Hello(self, asked):
        return 200, {"userName": "anna"}

    def GetModel(self, asked):
        return (200, {"id": 1}) if f"{asked['ownerSlug']}/{asked['modelSlug']}" in self.kaggle.models else (404, {})

    def CreateModel(self, asked):
        self.kaggle.models[f"{asked['ownerSlug']}/{asked['slug']}"] = asked["isPrivate"]
        return 200, {"id": 1}

    def StartBlobUpload(self, asked):
        token = f"token{len(self.kaggle.blobs)}"
        self.kaggle.blobs[token] = (asked["name"], None)
        return 200, {"token": token, "createUrl": f"{self.kaggle.address}/blobs/{token}"}

    def CreateModelInstance(self, asked):
        name, body = self._variation(asked), asked["body"]
        if name in self.kaggle.variations:
            return 200, {"error": "The variation exists.", "errorCode": 409}
        self.kaggle.variations[name] = [(body.get("licenseName"), "", self.kaggle.files(body))]
        return 200, {"id": 1}

    def CreateModelInstanceVersion(self, asked):
        body = asked["body"]
        self.kaggle.variations[self._variation(asked)].append((None, body.get("versionNotes"), self.kaggle.files(body)))
        return 200, {"id": 1}

    def GetModelInstance(self, asked):
        versions = self.kaggle.variations.get(self._variation(asked))
        return (404, {}) if versions is None else (200, {"versionNumber": len(versions)})

    def ListModelInstanceVersionFiles(self, asked):
        files = self.kaggle.variations[self._variation(asked)][asked["versionNumber"] - 1][2]
        return 200, {"files": [{"name": path} for path in files], "nextPageToken": ""}

    def DownloadModelInstanceVersion(self, asked):
        return 200, self.kaggle.variations[self._variation(asked)][asked["versionNumber"] - 1][2][asked["path"]]

    def log_message(self, *_):
        pass
