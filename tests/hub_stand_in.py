"""The Hugging Face hub's API on this machine: who has the token, repositories with their commits, files in and out."""

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import json
import threading

TOKEN = "hf_of_anna"


@dataclasses.dataclass
class Repository:
    """A repository; `commits` are (message, {path: bytes}) with all files after each of them, oldest first."""

    private: bool = False
    commits: list = dataclasses.field(default_factory=lambda: [("initial commit", {})])

    @property
    def files(self):
        return self.commits[-1][1]

    @property
    def sha(self):
        return f"{len(self.commits):040x}"


class Hub:
    """The server.

    Attributes:
        address: of it.
        repositories: {"owner/name": Repository}.
        user: what whoami says to who has TOKEN.
        uploaded: {sha256: bytes} of large files.
        fails: {part of a path: the status that it is answered with}.
        seen: (method, path) of each request.
    """

    def __init__(self):
        self.repositories, self.uploaded, self.fails, self.seen = {}, {}, {}, []
        self.user = {"name": "anna", "orgs": [{"name": "the-lab"}], "auth": {"accessToken": {"role": "write"}}}
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def commit(self, name, lines):
        """Adds the commit that the lines of a request describe."""
        repository, header, files = self.repositories[name], lines[0]["value"], dict(self.repositories[name].files)
        if header.get("parentCommit", repository.sha) != repository.sha:
            return 412, {"error": "the branch has moved"}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.uploaded[value["oid"]]
            else:
                assert line["key"] == "deletedFile"
                del files[value["path"]]
        repository.commits.append((header["summary"], files))
        return 200, {"commitUrl": f"{self.address}/{name}/commit/{repository.sha}", "commitOid": repository.sha}


@contextlib.contextmanager
def serving(monkeypatch, cache, token=TOKEN):
    """A Hub that huggingface_hub talks to, with an empty cache and `token`, or None."""
    import huggingface_hub.constants as constants

    hub = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no token"))
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN", raising=False)
    try:
        yield hub
    finally:
        hub.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub

    def _answer(self, status, body=b"", headers=()):
        body = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _missing(self):
        self._answer(404, {}, [("X-Error-Code", "RepoNotFound")])

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _handled(self):
        """Answers what every method answers alike: failures to be, and requests without the token where one is
        needed.
        """
        self.hub.seen.append((self.command, self.path))
        self.path = self.path.split("?")[0]
        for part, status in self.hub.fails.items():
            if part in self.path:
                self._body()
                self._answer(status, {"error": "not today"})
                return True
        needs = self.command == "POST" or "whoami" in self.path
        if needs and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._body()
            self._answer(401, {"error": "Invalid username or password."})
            return True
        return False

    def do_GET(self):
        if self._handled():
            return None
        if self.path == "/api/whoami-v2":
            return self._answer(200, self.hub.user)
        parts = self.path.strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._missing()
        if parts[0] == "api" and "tree" in parts:
            files = repository.files.items()
            return self._answer(
                200, [{"type": "file", "path": path, "size": len(data), "oid": path} for path, data in files]
            )
        if parts[0] == "api":
            files = [{"rfilename": path} for path in repository.files]
            return self._answer(
                200, {"id": name, "sha": repository.sha, "private": repository.private, "siblings": files}
            )
        path = "/".join(parts[4:])
        if path not in repository.files:
            return self._missing()
        data = repository.files[path]
        etag = hashlib.sha256(data).hexdigest()
        return self._answer(200, data, [("X-Repo-Commit", repository.sha), ("ETag", f'"{etag}"')])

    do_HEAD = do_GET

    def do_PUT(self):
        if not self._handled():
            data = self._body()
            assert hashlib.sha256(data).hexdigest() == self.path.rsplit("/", 1)[-1]
            self.hub.uploaded[self.path.rsplit("/", 1)[-1]] = data
            self._answer(200)

    def do_POST(self):
        if self._handled():
            return None
        body, parts = self._body(), self.path.strip("/").split("/")
        if self.path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given['organization']}/{given['name']}"
            private = given.get("visibility") == "private" or bool(given.get("private"))
            self.hub.repositories.setdefault(name, Repository(private))
            return self._answer(200, {"url": f"{self.hub.address}/{name}"})
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if parts[-1] == "batch":
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            return self._answer(200, {"transfer": "basic", "objects": objects})
        name = "/".join(parts[2:4])
        if name not in self.hub.repositories:
            return self._missing()
        if parts[4] == "preupload":
            modes = [
                (file["path"], "regular" if file["path"].endswith((".md", ".json")) else "lfs")
                for file in json.loads(body)["files"]
            ]
            return self._answer(
                200, {"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes]}
            )
        return self._answer(*self.hub.commit(name, [json.loads(line) for line in body.splitlines()]))

    def log_message(self, *_):
        pass
