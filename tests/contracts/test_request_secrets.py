"""A secret in the wrong place is refused, and not repeated in the refusal."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from osworld_rollouts.contracts.request import Model, RolloutRequest

URL = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize("key", ["sk-secret-abc123", "hf_AbCdEf", "secret", "A B", ""])
def test_a_key_is_no_name_of_a_variable(key):
    with pytest.raises(ValidationError, match="name of an environment variable") as raised:
        Model(name="m", base_url=URL, api_key_env=key)
    assert not key or key not in str(raised.value).replace("environment", "")


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "_K2", None])
def test_names_of_variables(name):
    assert Model(name="m", base_url=URL, api_key_env=name).api_key_env == name


@pytest.mark.parametrize("url", ["http://me:hunter2@host/v1", "https://hunter2@host/v1"])
def test_an_address_holds_no_password(url):
    with pytest.raises(ValidationError, match="must not hold a user name or password") as raised:
        Model(name="m", base_url=url)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ValidationError) as raised:
        RolloutRequest.model_validate({"rollout": {"model": {"name": "m", "base_url": url}}})
    assert "hunter2" not in str(raised.value)


def test_an_at_sign_elsewhere_is_fine():
    assert Model(name="m", base_url="http://host/v1/@team").base_url.endswith("@team")
