"""An A2A peer outside the container, using only the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

from image_smoke.report import CheckError


class Peer:
    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        # Requests to this machine must not use a proxy.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def get(self, path: str) -> tuple[int, Any]:
        """Returns the status and the JSON body; status 0 if there is no response."""
        try:
            with self._open(self._url + path, timeout=15) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, None

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        with self._post(method, params) as answer:
            return _result(json.load(answer))

    def ask(self, text: str, context: str = "") -> dict[str, Any]:
        """Sends a message and returns its task."""
        task: dict[str, Any] = self.call("SendMessage", message=new_message(text, context))["task"]
        return task

    def stream(self, text: str, context: str = "") -> Iterator[dict[str, Any]]:
        with self._post("SendStreamingMessage", {"message": new_message(text, context)}) as answer:
            for line in answer:
                if line.startswith(b"data:"):
                    yield _result(json.loads(line.removeprefix(b"data:")))

    def _post(self, method: str, params: dict[str, Any]) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url + "/", json.dumps(body).encode(), headers)
        return self._open(request, timeout=90)


def new_message(text: str, context: str = "") -> dict[str, Any]:
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    return message | ({"contextId": context} if context else {})


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise CheckError(f"the agent answered {answer['error']}")
    result: dict[str, Any] = answer["result"]
    return result


def state(task: dict[str, Any]) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def reply(task: dict[str, Any]) -> str:
    parts = [part for artifact in task.get("artifacts", []) for part in artifact["parts"]]
    return "".join(part.get("text", "") for part in parts)


def last_words(task: dict[str, Any]) -> str:
    return json.dumps(task["status"].get("message", {}), ensure_ascii=False)
