"""A hub on this machine: the part of the API that huggingface_hub calls to create, upload to and read a repository."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_a_test"
SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """The repositories of the hub: name → path → content."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.blobs: dict[str, bytes] = {}  # uploaded large files, by their SHA-256
        self.commits: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def answer(self, values: Any, code: int = 200, **headers: str) -> None:
        content = values if isinstance(values, bytes) else json.dumps(values).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self) -> None:
        content, path = self.body(), self.path.split("?")[0]
        if self.headers.get("authorization") not in (f"Bearer {TOKEN}", None) or (
            "verify" not in path and not self.headers.get("authorization")
        ):
            return self.answer({"error": "Invalid username or password."}, 401)
        if path == "/api/repos/create":
            values = json.loads(content)
            name = f"{values['organization']}/{values['name']}" if values.get("organization") else values["name"]
            code = 409 if name in self.server.repositories else 200
            self.server.repositories.setdefault(name, {})
            self.server.private.setdefault(name, bool(values.get("private") or values.get("visibility") == "private"))
            return self.answer({"url": f"{self.server.url}/{name}", "name": name}, code)
        if "/preupload/" in path:
            files = [file["path"] for file in json.loads(content)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in files}
            return self.answer(
                {"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]}
            )
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**one, "authenticated": True, "actions": {"upload": {"href": f"{self.server.url}/lfs/{one['oid']}"}}}
                for one in json.loads(content)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": objects})
        if "/commit/" in path:
            return self.commit(path, [json.loads(line) for line in content.splitlines()])
        return self.answer({})

    def commit(self, path: str, lines: list[dict[str, Any]]) -> None:
        name = path.removeprefix("/api/models/").partition("/commit/")[0]
        files = self.server.repositories[name]
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.server.commits.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
        self.answer({"success": True, "commitOid": SHA, "commitUrl": f"{self.server.url}/{name}/commit/{SHA}"})

    def do_PUT(self) -> None:
        content = self.body()
        self.server.blobs[hashlib.sha256(content).hexdigest()] = content
        self.answer({})

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/api/whoami-v2":
            return self.answer({"name": "anna", "type": "user"})
        name = "/".join(path.removeprefix("/api/models/").strip("/").split("/")[:2])
        files = self.server.repositories.get(name)
        if files is None:
            return self.answer({"error": "Repository not found"}, 404, x_error_code="RepoNotFound")
        if path.startswith("/api/models/"):
            if "/tree/" in path:
                return self.answer(
                    [
                        {"type": "file", "path": file, "size": len(content), "oid": SHA}
                        for file, content in files.items()
                    ]
                )
            siblings = [{"rfilename": file} for file in files]
            return self.answer({"id": name, "sha": SHA, "private": self.server.private[name], "siblings": siblings})
        content = files[path.partition(f"/resolve/{SHA}/")[2] or path.partition("/resolve/main/")[2]]
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        return self.answer(content, ETag=etag, X_Repo_Commit=SHA, X_Linked_Size=str(len(content)))

    do_HEAD = do_GET


@contextmanager
def run_hub() -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
