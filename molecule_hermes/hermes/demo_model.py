"""The built-in demo model: an OpenAI-compatible server that never pretends to be a real model.

It lets a first run and the tests use the real Hermes without a key. It repeats the user's message
and follows directives in it (`docs/demo-model.md` describes them):

    demo:slow[=SECONDS]   stream word by word, with that many seconds in between
    demo:words=N          answer with N numbered words
    demo:run COMMAND      call Hermes's terminal tool (the rest of the line), then report
    demo:read             print the first attached file with that tool, else the latest file of the
                          earlier messages
    demo:file=NAME TEXT   write a file with that tool (base64:… for bytes) and deliver it
    demo:say TEXT         answer with that text only
    demo:ask[=A|B] TEXT   ask that question through Hermes's clarify tool, then report the answer
    demo:call=TOOL {JSON} call any tool of Hermes with these arguments, then report; several such
                          lines are calls that the model makes at once
    demo:fail=CAUSE       fail as a provider would: 401, 404, 429, 500, quota, context, page
    demo:fail=STATUS:CODE TEXT   fail with that HTTP status, code (may be empty) and message
    demo:json[=WHEN]      answer with JSON for the schema in the message: at once, `fenced` among
                          other text, when the answer is corrected (`second`), or `never`
    demo:model            answer with the name of the model that was asked for
    demo:model=NAME       answer requests for that model only
    demo:flaky=N[:STATUS] fail the first N requests with this message (500), then answer
    demo:think TEXT       think that before the answer
    demo:cached=N         report N more prompt tokens, all from the cache
    demo:loop COMMAND     call the terminal tool again and again, as long as there are tools
    demo:clock            answer with the time at which the first word is written
    demo:empty            answer with an empty text
    demo:silent           answer "[SILENT]"
    demo:hang             never answer
    demo:break            close the connection in the middle of the stream
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import itertools
import json
import re
import shlex
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from aiohttp import web

from molecule_hermes.hermes.demo_json import is_correction, json_answer

__all__ = ["DEMO_MODEL", "demo_model"]

DEMO_MODEL = "molecule-demo"

_MAX_BODY = 64 * 2**20
_DIRECTIVE = re.compile(r"demo:(\w+)(?:=([^\s]+))?(?:[ \t]+([^\n]+))?")
# How Hermes names the path of an attached file in the prompt (gateway/run.py:2290).
_PATH = re.compile(r"(?:saved|attached) at: (/.+?)(?:\. Its |\])")
# How the plugin names the files of earlier messages (plugin/prompts.py).
_KEPT = re.compile(r"\[Files of earlier messages are still in (/[^\]\n]+?): '([^']*)'[^\]]*\]\s*")
_FILE_NOTE = re.compile(r"\[The user sent [^\]]*?'([^'\]]*)'[^\]]*\]")
# How Hermes adds to a tool's result what the user said meanwhile (agent/prompt_builder.py:632).
_STEERING = re.compile(
    r"\s*\[OUT-OF-BAND USER MESSAGE[^\]]*\]\n(.*?)\n\[/OUT-OF-BAND USER MESSAGE\]", re.DOTALL
)
# How Hermes tells the agent that a job has ended (tools/process_registry.py:2071, 2207).
_JOB_NOTE = re.compile(
    r"\[IMPORTANT: Background process [^\n]*\nCommand: [^\n]*\n[^\n]*utput:\n(.*?)\s*\]"
    r"|\[ASYNC DELEGATION[^\]]*\].*?---[^\n]*---\n(.*?)\s*(?=\nFull live transcript|\Z)",
    re.DOTALL,
)
_IMAGE_NOTE = re.compile(r"\s*\[Image attached at: [^\]]*\]")
_FAILURES: Mapping[str, tuple[int, str, str]] = {
    "401": (401, "invalid_api_key", "Incorrect API key provided: sk-demo0123456789abcdef."),
    "404": (404, "model_not_found", "The model `molecule-demo` does not exist."),
    "429": (429, "rate_limit_exceeded", "Rate limit reached, please slow down."),
    "500": (500, "server_error", "The server had an error while processing your request."),
    "quota": (429, "insufficient_quota", "You exceeded your current quota, check your billing."),
    "page": (502, "bad_gateway", "<html><body><h1>502 Bad Gateway</h1>proxy</body></html>"),
    "context": (400, "context_length_exceeded", "The prompt exceeds the context window."),
}


OnMessage = Callable[[str], None]
_ON_MESSAGE: web.AppKey[OnMessage] = web.AppKey("on_message")
_PRICES: web.AppKey[Mapping[str, str]] = web.AppKey("prices")
_FAILED: web.AppKey[Counter[str]] = web.AppKey("failed")
_REMEMBERED = 1000


@asynccontextmanager
async def demo_model(
    port: int = 0,
    on_message: OnMessage = lambda text: None,
    prices: Mapping[str, str] | None = None,
) -> AsyncIterator[str]:
    """Serves the demo model on loopback; yields its base URL (`http://127.0.0.1:PORT/v1`).

    `on_message` is called with the last user message of each request. `prices` in US dollars per
    token (`prompt`, `completion`) are what its list of models says; by default it says nothing.
    """
    app = web.Application(client_max_size=_MAX_BODY)
    app[_ON_MESSAGE] = on_message
    app[_PRICES] = prices or {}
    app[_FAILED] = Counter()
    app.router.add_get("/v1/models", _models)
    app.router.add_post("/v1/chat/completions", _completions)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        host, bound = runner.addresses[0][:2]
        yield f"http://{host}:{bound}/v1"
    finally:
        await runner.cleanup()


_Call: TypeAlias = tuple[str, dict[str, Any]]
"""The name of a tool and its arguments."""


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str = ""
    tools: tuple[_Call, ...] = ()
    pause: float = 0.0
    broken: bool = False
    thought: str = ""
    cached: int = 0
    model: str = DEMO_MODEL


async def _models(request: web.Request) -> web.Response:
    model: dict[str, Any] = {"id": DEMO_MODEL, "object": "model"}
    if prices := request.app[_PRICES]:
        model["pricing"] = dict(prices)
    return web.json_response({"object": "list", "data": [model]})


async def _completions(request: web.Request) -> web.StreamResponse:
    try:
        body = await request.json()
        messages = [m for m in body["messages"] if isinstance(m, dict)]
    except (ValueError, KeyError, TypeError):
        messages = []
    if not messages:
        return _error(400, "invalid_request_error", "the body must be JSON with `messages`")
    last_user = _text(_last_user(messages))
    request.app[_ON_MESSAGE](last_user)
    directives = {name: (value, rest) for name, value, rest in _DIRECTIVE.findall(last_user)}
    model = str(body.get("model") or DEMO_MODEL)
    if failure := _failing(directives, last_user, model, request.app[_FAILED]):
        return _error(*failure)
    if "hang" in directives:
        await asyncio.sleep(3600)
    if "model" in directives and not directives["model"][0]:
        directives["say"] = ("", model)
    answer = replace(
        _answer(messages, last_user, directives, has_tools=bool(body.get("tools"))),
        thought=directives.get("think", ("", ""))[1],
        cached=int(_number(directives.get("cached", ("", ""))[0], 0)),
        model=model,
    )
    if body.get("stream"):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with contextlib.suppress(ConnectionError):  # the client has disconnected
            await _stream(request, response, answer)
        return response
    return web.json_response(_whole(answer))


def _failing(
    directives: Mapping[str, tuple[str, str]], text: str, model: str, failed: Counter[str]
) -> tuple[int, str, str] | None:
    """The failure with which a request is answered; None if it is not to fail."""
    if "fail" in directives:
        return _failure(*directives["fail"])
    if directives.get("model", ("", ""))[0] not in ("", model):
        return 404, "model_not_found", f"The model `{model}` does not exist."
    times, _, status = directives.get("flaky", ("0", ""))[0].partition(":")
    if failed[text] >= _number(times, 1):
        return None
    if len(failed) > _REMEMBERED:
        failed.clear()
    failed[text] += 1
    return _FAILURES.get(status, _FAILURES["500"])


def _failure(cause: str, text: str) -> tuple[int, str, str]:
    """The status, code and message of a failure: a named one, or one that the message gives."""
    status, colon, code = cause.partition(":")
    if colon and re.fullmatch(r"[45]\d\d", status):
        return int(status), code or "error", text or "The request failed."
    return _FAILURES.get(cause, _FAILURES["500"])


def _answer(
    messages: list[dict[str, Any]],
    last_user: str,
    directives: Mapping[str, tuple[str, str]],
    *,
    has_tools: bool,
) -> _Answer:
    pause = _number(directives["slow"][0], 0.15) if "slow" in directives else 0.0
    fixed = {
        "empty": "",
        "silent": "[SILENT]",
        "say": directives.get("say", ("", ""))[1],
        "clock": f"{time.time():.6f} seconds",
    }
    if name := next((name for name in fixed if name in directives), ""):
        return _Answer(fixed[name], pause=pause)
    tools = _tools(last_user, directives)
    results = _results(messages)
    if "loop" in directives and has_tools:
        # Hermes stops an agent that repeats the same call.
        command = f"{directives['loop'][1] or 'true'} # {len(messages)}"
        tools, results = (("terminal", {"command": command}),), []
    how = _json_directive(messages, last_user, directives)
    if how is not None and (results or not tools):
        return _Answer(json_answer(how, last_user), pause=pause)
    if results:
        return _Answer(_report(results, "file" in directives), pause=pause)
    if tools:
        return _Answer("I will run that now.", tools=tools, pause=pause)
    if "words" in directives:
        count = int(_number(directives["words"][0], 100))
        return _Answer(" ".join(f"word{i}" for i in range(min(count, 100_000))), pause=pause)
    return _Answer(_echo(messages, last_user), pause=pause, broken="break" in directives)


def _json_directive(
    messages: list[dict[str, Any]], last_user: str, directives: Mapping[str, tuple[str, str]]
) -> str | None:
    """The value of `demo:json`. A correction is asked for in a message of its own, without it."""
    if "json" in directives:
        return directives["json"][0]
    if not is_correction(last_user):
        return None
    said = (_text(m) for m in reversed(messages) if m.get("role") == "user")
    found = (_DIRECTIVE.findall(text) for text in said if not is_correction(text))
    return next((value for each in found for name, value, _ in each if name == "json"), None)


def _report(results: list[str], delivers: bool) -> str:
    """What the tools returned, and what the peer said while they ran."""
    parted = [_without_steering(result) for result in results]
    told = "\n".join(f"The tool answered: {result[:2000]}" for result, _ in parted)
    said = [text for _, steered in parted for text in steered]
    heard = "".join(f"\nMeanwhile you said: {text}" for text in said)
    return (_delivery(parted[-1][0]) if delivers else told) + heard


def _results(messages: list[dict[str, Any]]) -> list[str]:
    """What the tools that were called last have returned."""
    last = itertools.takewhile(lambda m: m.get("role") == "tool", reversed(messages))
    return [_text(message) for message in last][::-1]


def _tools(last_user: str, directives: Mapping[str, tuple[str, str]]) -> tuple[_Call, ...]:
    if command := _command(last_user, directives):
        return (("terminal", {"command": command}),)
    if "ask" in directives:
        choices, question = directives["ask"]
        asked = {"question": question or "Which one?"}
        return (("clarify", asked | ({"choices": choices.split("|")} if choices else {})),)
    calls = []
    for directive, name, arguments in _DIRECTIVE.findall(last_user):
        if directive == "call":
            with contextlib.suppress(ValueError, TypeError):
                calls.append((name, dict(json.loads(arguments or "{}"))))
    return tuple(calls)


def _command(last_user: str, directives: Mapping[str, tuple[str, str]]) -> str:
    """The command for the terminal tool; "" if it is not called."""
    if "run" in directives:
        return directives["run"][1] or "true"
    if "read" in directives:
        path = next(iter(_PATH.findall(last_user)), "") or "/".join(_kept(last_user))
        return f"cat {shlex.quote(path)}" if path else "echo no file is attached"
    if "file" in directives:
        name, text = directives["file"]
        path = shlex.quote("./" + (name.rpartition("/")[2] or "file.txt"))
        plain = not text.startswith("base64:")
        data = base64.b64encode(text.encode()).decode() if plain else text.removeprefix("base64:")
        return f"printf %s {shlex.quote(data)} | base64 -d > {path} && realpath {path}"
    return ""


def _without_steering(result: str) -> tuple[str, list[str]]:
    """A tool's result, and what the peer said while the tool ran."""
    return _STEERING.sub("", result), [text.strip() for text in _STEERING.findall(result)]


def _delivery(result: str) -> str:
    """An answer that makes Hermes deliver the file; the terminal tool's result is JSON."""
    try:
        path = json.loads(result)["output"].strip().splitlines()[-1]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return f"The file was not written: {result[:2000]}"
    return f"Here is the file.\nMEDIA:{path}"


def _echo(messages: list[dict[str, Any]], last_user: str) -> str:
    texts = [_repeated(_text(m)) for m in messages if m.get("role") == "user"]
    reply = f"Demo model here (not a real one, I only repeat). You said: {_repeated(last_user)}"
    if images := _images(_last_user(messages)):
        reply += f"\nI see {len(images)} image{'s' * (len(images) > 1)}: {'; '.join(images)}"
    if earlier := [text for text in texts[:-1] if text]:
        quoted = "; ".join(s[:200] for s in earlier[-5:])
        reply += f"\nEarlier in this conversation you said: {quoted}"
    return reply


def _last_user(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return next((m for m in reversed(messages) if m.get("role") == "user"), {})


def _repeated(text: str) -> str:
    """The text without what Hermes added around a job's output, and without the paths that it
    added: it delivers the files that an answer names."""
    text = _JOB_NOTE.sub(lambda note: f"(a job ended: {note[1] or note[2] or ''})", text)
    text = _KEPT.sub("", _IMAGE_NOTE.sub("", text))
    return _FILE_NOTE.sub(r"[file: \1]", text).strip()


def _kept(text: str) -> tuple[str, ...]:
    """The folder and the name of the latest file of an earlier message."""
    found = _KEPT.search(text)
    return found.groups() if found else ()


def _images(message: Mapping[str, Any]) -> list[str]:
    """The type and size of each image in a message."""
    content = message.get("content")
    parts = [p for p in content if isinstance(p, dict)] if isinstance(content, list) else []
    links = [p.get("image_url") for p in parts if p.get("type") == "image_url"]
    return [_image(str(link.get("url"))) for link in links if isinstance(link, dict)]


def _image(url: str) -> str:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:"):
        return "an address"
    with contextlib.suppress(binascii.Error, ValueError):
        return f"{head[5:].partition(';')[0]}, {len(base64.b64decode(data))} bytes"
    return "broken"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (p.get("text") for p in content if isinstance(p, dict))
        return "\n".join(p for p in parts if isinstance(p, str))
    return ""


def _number(text: str, default: float) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        return default


def _error(status: int, code: str, message: str) -> web.Response:
    if message.startswith("<"):
        return web.Response(text=message, status=status, content_type="text/html")
    return web.json_response(
        {"error": {"message": message, "type": code, "code": code}}, status=status
    )


def _usage(answer: _Answer) -> dict[str, Any]:
    """A word is a token, and a prompt has 10 more than those from the cache."""
    thought = len(answer.thought.split())
    prompt, words = 10 + answer.cached, len(answer.text.split()) + thought
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": words}
    if answer.cached:
        usage["prompt_tokens_details"] = {"cached_tokens": answer.cached}
    if thought:
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
    return usage | {"total_tokens": prompt + words}


def _tool_calls(answer: _Answer) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "id": f"call_{uuid.uuid4().hex[:12]}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for index, (name, arguments) in enumerate(answer.tools)
    ]


def _whole(answer: _Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if answer.tools:
        message["tool_calls"] = _tool_calls(answer)
    finish = "tool_calls" if answer.tools else "stop"
    return {
        "id": "chatcmpl-demo",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": answer.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": _usage(answer),
    }


async def _stream(request: web.Request, response: web.StreamResponse, answer: _Answer) -> None:
    await response.prepare(request)

    async def chunk(delta: dict[str, Any], finish: str | None = None, **extra: Any) -> None:
        data = {
            "id": "chatcmpl-demo",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": answer.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            **extra,
        }
        await response.write(f"data: {json.dumps(data)}\n\n".encode())

    await chunk({"role": "assistant"})
    for word in re.findall(r"\S+\s*|\s+", answer.thought):
        await chunk({"reasoning_content": word})
        await asyncio.sleep(answer.pause)
    for word in re.findall(r"\S+\s*|\s+", answer.text):
        await chunk({"content": word})
        if answer.pause:
            await asyncio.sleep(answer.pause)
        if answer.broken and request.transport is not None:
            request.transport.abort()
            return
    if answer.tools:
        await chunk({"tool_calls": _tool_calls(answer)})
    await chunk({}, "tool_calls" if answer.tools else "stop", usage=_usage(answer))
    await response.write(b"data: [DONE]\n\n")
