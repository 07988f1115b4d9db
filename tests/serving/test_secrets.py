from __future__ import annotations

import pytest

from osworld_rollouts.serving.secrets import KeyMissing, public_headers, redact, resolve_key


def test_resolve(monkeypatch):
    monkeypatch.setenv("MY_KEY", "abc")
    monkeypatch.setenv("EMPTY_KEY", "")
    assert resolve_key(None) is None
    assert resolve_key("MY_KEY") == "abc"
    assert resolve_key("EMPTY_KEY") is None
    assert resolve_key("UNSET_KEY") is None
    with pytest.raises(KeyMissing, match=r"UNSET_KEY.*api_key_env"):
        resolve_key("UNSET_KEY", required=True)


def test_redact():
    assert redact("key sk-12345678 was refused", "sk-12345678", None) == "key [redacted] was refused"
    assert redact("an EMPTY key", "EMPTY") == "an EMPTY key"


def test_headers():
    assert public_headers({"X-Request-Id": "1", "Set-Cookie": "s", "Authorization": "b"}) == {"x-request-id": "1"}
