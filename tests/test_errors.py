"""The tree of failures and their form for peers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molecule_hermes.errors import FAILURES, BridgeError, StartError, TurnFailure, failure_from_dict
from molecule_hermes.provider_errors import failure_from_model_error
from molecule_hermes.text import redact


def test_every_kind_of_the_design_has_its_failure() -> None:
    assert set(FAILURES) == {
        "unreachable",
        "timeout",
        "busy",
        "draining",
        "auth",
        "quota",
        "rate_limit",
        "model_not_found",
        "context_overflow",
        "too_large",
        "bad_request",
        "empty_reply",
        "interrupted",
        "forbidden",
        "internal",
    }


@pytest.mark.parametrize("failure", FAILURES.values())
def test_every_failure_explains_itself(failure: type[TurnFailure]) -> None:
    told = failure().as_dict()
    assert told["message"]
    assert told["hint"]
    assert isinstance(told["retryable"], bool)
    assert issubclass(failure, BridgeError)


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("HTTP 401: Incorrect API key provided.", None, "auth"),
        ("nope", 401, "auth"),
        ("nope", 403, "auth"),
        ("nope", 402, "quota"),
        ("HTTP 404: no such thing", None, "model_not_found"),
        ("The model `gpt-9` does not exist", 400, "model_not_found"),
        ("Rate limit reached", 429, "rate_limit"),
        ("insufficient_quota", 429, "quota"),
        ("Overloaded", 529, "internal"),
        ("<html><h1>Bad gateway</h1></html>", 502, "internal"),
        ("prompt is too long: 300000 tokens", 400, "context_overflow"),
        ("Context length exceeded (9 tokens). Cannot compress further.", None, "context_overflow"),
        ("Request timed out.", None, "timeout"),
        ("bad parameter", 400, "bad_request"),
        ("", None, "internal"),
    ],
)
def test_a_providers_error_gets_its_kind(text: str, status: int | None, kind: str) -> None:
    failure = failure_from_model_error(text, status)
    assert failure.kind == kind
    assert "<" not in failure.message


QUOTA = [
    (400, "Your credit balance is too low to access the API."),
    (429, "Try another plan. (quota_exceeded)"),
    (429, "No more today. (usage_limit_exceeded)"),
    (429, "plan limit reached"),
    (403, "Not now. (quota_exceeded)"),
    (403, "credits exhausted"),
    (429, "credits exhausted"),
    (429, "Quota exceeded"),
    (403, "Quota exceeded"),
    (429, "You have reached the limit of messages"),
    (429, "You have used up your usage for this week"),
    (429, "The usage limit has been reached; try again in 4 hours 3 minutes"),
    (429, "Quota exceeded for requests per day. Please retry in 32s."),
    (429, "You exceeded your current quota, please check your plan and billing details."),
]


@pytest.mark.parametrize(("status", "text"), QUOTA)
@pytest.mark.parametrize("form", ["hook", "text"])
def test_a_spent_quota_is_not_worth_a_retry(status: int, text: str, form: str) -> None:
    vague = {400: "billing", 403: "auth", 429: "rate_limit"}[status]
    hook = failure_from_model_error(text, status, vague)
    failure = hook if form == "hook" else failure_from_model_error(f"HTTP {status}: {text}")
    assert (failure.kind, failure.retryable) == ("quota", False)


@pytest.mark.parametrize(
    "text",
    [
        "Quota exceeded for metric: requests per minute. Please retry in 32s.",
        "You exceeded your current quota, please check your plan and billing details. "
        "Please retry in 20.1s.",
        "Rate limit reached on tokens per min (TPM): Limit 10000. Please try again in 6s. "
        "You can raise it by adding a payment method at https://example.com/account/billing.",
    ],
)
def test_a_quota_per_minute_is_a_rate_limit(text: str) -> None:
    for failure in (
        failure_from_model_error(text, 429, "rate_limit"),
        failure_from_model_error(f"HTTP 429: {text}"),
    ):
        assert (failure.kind, failure.retryable) == ("rate_limit", True)


@pytest.mark.parametrize(
    ("reason", "text", "status", "kind"),
    [
        ("billing", "Rate limit reached", 429, "quota"),
        ("rate_limit", "too many tokens in this window", 429, "rate_limit"),
        ("auth_permanent", "no such model", 403, "auth"),
        ("model_not_found", "permission denied", 403, "model_not_found"),
        ("context_overflow", "bad request", 400, "context_overflow"),
        ("timeout", "The request timed out.", None, "timeout"),
        # Hermes calls it a timeout, too.
        ("timeout", "Connection error.", None, "unreachable"),
        ("server_error", "authentication backend is down", None, "internal"),
        ("format_error", "x does not match any known model", 400, "model_not_found"),
        ("", "HTTP 400: x does not match any known model", None, "model_not_found"),
        ("unknown", "Incorrect API key provided", None, "auth"),
        ("format_error", "bad parameter", 400, "bad_request"),
        ("no-such-reason", "nope", 402, "quota"),
    ],
)
def test_hermess_own_verdict_counts_before_the_text(
    reason: str, text: str, status: int | None, kind: str
) -> None:
    assert failure_from_model_error(text, status, reason).kind == kind


def test_a_provider_in_trouble_is_worth_a_retry_and_a_bad_key_is_not() -> None:
    assert failure_from_model_error("boom", 500).retryable
    assert not failure_from_model_error("no", 401).retryable


@given(st.text(), st.one_of(st.none(), st.integers()))
def test_any_providers_error_becomes_a_failure(text: str, status: int | None) -> None:
    assert isinstance(failure_from_model_error(text, status), TurnFailure)


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.text(), st.booleans(), st.integers())))
def test_any_mapping_becomes_a_failure(data: dict[str, object]) -> None:
    assert isinstance(failure_from_dict(data), TurnFailure)


@pytest.mark.parametrize("kind", sorted(FAILURES))
def test_a_failure_survives_the_wire(kind: str) -> None:
    failure = FAILURES[kind]("what happened", hint="do this", retryable=True)
    assert failure_from_dict(failure.as_dict()).as_dict() == failure.as_dict()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abcdef1234567890", "abcdef1234567890"),
        ("Incorrect API key provided: sk-proj-abcdefgh12345678.", "abcdefgh12345678"),
        ("key AIzaSyA-1234567890abcdefghijklmnop", "1234567890abcdefghijklmnop"),
        ("https://user:hunter22@example.com/x", "hunter22"),
        ('{"api_key": "topsecretvalue"}', "topsecretvalue"),
        ("password=hunter22", "hunter22"),
        ("ghp_abcdefghijklmnop1234", "abcdefghijklmnop1234"),
    ],
)
def test_secrets_are_redacted(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert secret not in failure_from_model_error(text).message


def test_ordinary_text_is_left_alone() -> None:
    text = "the task is done; see https://example.com/a:b and basic tasks"
    assert redact(text) == text


def test_a_start_error_says_what_to_do() -> None:
    assert (
        str(StartError("port 1 is taken", "choose another")) == "port 1 is taken — choose another"
    )
