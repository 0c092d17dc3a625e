from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.text import is_loopback, one_line, redact


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9", "::ffff:127.0.0.1"]
)
def test_loopback_addresses_are_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "127.0.0.1.example", "localhost."]
)
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@given(st.text())
def test_any_text_is_a_loopback_host_or_not(host: str) -> None:
    assert is_loopback(host) in (True, False)


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-0123456789abcdef",
        "xai-0123456789abcdef",
        "github_pat_11AAAAAAA0abcdefghij",
        "glpat-0123456789abcdef",
        "pplx-0123456789abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "ya29.a0AfH6SMBxyzabcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123",
    ],
)
def test_a_key_is_recognised_by_its_form(secret: str) -> None:
    assert redact(f"{secret} is not valid") == "*** is not valid"


@pytest.mark.parametrize(
    "sentence",
    [
        "Incorrect API key provided: {}. You can find yours at https://example.com.",
        "the API key '{}' is not valid",
        'invalid api_key="{}"',
        "x-api-key: {}",
        "GET https://example.com/v1?key={} failed",
        "https://user:{}@example.com refused the request",
    ],
)
def test_a_key_of_any_form_is_recognised_by_what_stands_before_it(sentence: str) -> None:
    secret = "0123456789abcdef.QWERTY"
    assert secret not in redact(sentence.format(secret))


@pytest.mark.parametrize(
    "text",
    [
        "no API key is set: looked for OPENROUTER_API_KEY, ANTHROPIC_API_KEY",
        "the prompt has 200000 tokens: too many",
        "the API key was refused",
        "skip the task-force-one",
    ],
)
def test_ordinary_words_are_not_secrets(text: str) -> None:
    assert redact(text) == text


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece", ["a.", "a+", "sk-", "://", "token ", "api key ", "<script ", "<", "eyJ", "bearer "]
)
def test_a_long_text_costs_little_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    redact(text)
    one_line(text)
