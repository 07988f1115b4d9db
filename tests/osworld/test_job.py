import math
from pathlib import Path

import pytest

from osworld_rollouts.osworld.job import FailureKind, GuestEndpoint, PrepareFailed, as_score


@pytest.mark.parametrize(("value", "score"), [(0, 0.0), (1, 1.0), (1.0, 1.0), (0.37, 0.37), (True, 1.0), (False, 0.0)])
def test_numbers_are_scores(value, score):
    assert as_score(value) == score
    assert type(as_score(value)) is float


def test_numpy_numbers_are_scores():
    np = pytest.importorskip("numpy")
    assert as_score(np.float64(0.5)) == 0.5
    assert as_score(np.bool_(True)) == 1.0
    assert as_score(np.int64(1)) == 1.0


@pytest.mark.parametrize(
    "value", [None, "1", "", [], [1.0], {}, math.nan, math.inf, -math.inf, -0.01, 1.01, 100, object(), 1j]
)
def test_everything_else_is_no_verdict(value):
    with pytest.raises(ValueError, match="no score"):
        as_score(value)


def test_an_endpoint_is_sockets_or_a_host():
    with pytest.raises(ValueError, match="server_socket or host"):
        GuestEndpoint()
    with pytest.raises(ValueError, match="server_socket or host"):
        GuestEndpoint(server_socket=Path("/x"), host="127.0.0.1")
    assert "secret" not in repr(GuestEndpoint(host="h", token="secret"))


def test_a_failure_names_its_step():
    error = PrepareFailed(FailureKind.STEP_FAILED, "return code 1", step=3, step_type="execute")
    assert str(error) == "step 3 (execute): return code 1"
    assert error.kind == "step_failed"
