"""A model hub on this machine: the routes through which huggingface_hub fetches a repository."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.http_threads import Calls, serving_calls

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving_hub(repo: str, folder: Path) -> Iterator[str]:
    """Serve the files of `folder` as the repository `repo`; gives the hub's address."""

    class Routes(Calls):
        def do_HEAD(self) -> None:
            self._answer(has_body=False)

        def do_GET(self) -> None:
            self._answer(has_body=True)

        def _answer(self, *, has_body: bool) -> None:
            path = self.path.split("?")[0]
            if path.startswith(f"/api/models/{repo}/revision/"):
                files = [{"rfilename": file.name} for file in folder.iterdir()]
                self._send_json({"id": repo, "sha": COMMIT, "siblings": files})
            elif path.startswith(f"/api/models/{repo}/tree/"):
                self._send_json([_tree_entry(file) for file in folder.iterdir()])
            elif path.startswith(f"/{repo}/resolve/") and (folder / Path(path).name).is_file():
                body = (folder / Path(path).name).read_bytes()
                self._send(body, {"ETag": f'"{_tag(body)}"', "X-Repo-Commit": COMMIT}, has_body)
            else:
                self.send_error(404)

        def _send_json(self, value: object) -> None:
            self._send(json.dumps(value).encode(), {"Content-Type": "application/json"}, has_body=True)

        def _send(self, body: bytes, headers: dict[str, str], has_body: bool) -> None:
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if has_body:
                self.wfile.write(body)

    with serving_calls(Routes) as address:
        yield f"http://{address}"


def _tree_entry(file: Path) -> dict[str, Any]:
    body = file.read_bytes()
    return {"type": "file", "path": file.name, "size": len(body), "oid": _tag(body)}


def _tag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
