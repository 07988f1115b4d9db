from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osworld_rollouts import history
from osworld_rollouts.contracts.request import History


def policy(name, **params):
    return History(name=name, params=params)


def walk(given_policy, turns):
    """Screenshots shown in each call."""
    window, shown = history.initial_window(given_policy), []
    for turn in range(turns):
        window = history.advance(given_policy, window, turn)
        shown.append(history.live_turns(given_policy, window, turn))
    return shown, window


def counts(given_policy, turns):
    return [len(shown) for shown in walk(given_policy, turns)[0]]


@pytest.mark.parametrize(
    ("given_policy", "images"),
    [
        (policy("none"), [1] * 6),
        (policy("full"), [1, 2, 3, 4, 5, 6]),
        (policy("fixed", keep_images=3), [1, 2, 3, 3, 3, 3]),
        (policy("fixed", keep_images=1), [1] * 6),
        (policy("hysteresis", low=3, high=10), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 3, 4, 5, 6, 7, 8, 9, 10, 3]),
        (policy("hysteresis", low_water=1, high_water=2), [1, 2, 1, 2, 1, 2]),
        (policy("sink_window", sink=1, low=4, high=4), [1, 2, 3, 4, 4, 4, 4]),
        (policy("sink_window", sink=2, low=3, high=5), [1, 2, 3, 4, 5, 3, 4, 5, 3]),
        (policy("full", max_images=2), [1, 2, 2, 2]),
        (policy("hysteresis", low=3, high=10, max_images=5), [1, 2, 3, 4, 5, 3, 4, 5, 3]),
        (policy("fixed", keep_images=9, max_image_tokens=1000, tokens_per_image=400), [1, 2, 2, 2]),
        (policy("sink_window", sink=2, low=3, high=5, max_images=1), [1, 2, 3, 3, 3]),
    ],
)
def test_images_in_each_call(given_policy, images):
    assert counts(given_policy, len(images)) == images


def test_the_sink_stays():
    shown, _ = walk(policy("sink_window", sink=1, low=4, high=4), 11)
    assert shown[9] == (0, 7, 8, 9)
    assert shown[10] == (0, 8, 9, 10)


def test_the_window_stands_still_between_compactions():
    given_policy = policy("hysteresis", low=3, high=10)
    window, starts = history.initial_window(given_policy), []
    for turn in range(27):
        window = history.advance(given_policy, window, turn)
        starts.append((window.image_start, window.epoch))
    assert starts == [*[(0, 0)] * 10, *[(8, 1)] * 8, *[(16, 2)] * 8, (24, 3)]


@pytest.mark.parametrize(
    ("given_policy", "digest"),
    [
        (policy("fixed", keep_images=1), "b7220985bd046580251603b7"),
        (policy("fixed", keep_images=3), "d171b7730c73e7c384ab2b25"),
        (policy("fixed", keep_images=10), "c6aa3cc4908990e7e48aa92a"),
        (policy("hysteresis", low=3, high=10), "df73e1447137486cb16fa3a6"),
        (policy("hysteresis", low_water=1, high_water=5), "c4f9c60cd41592bec97923c8"),
        (policy("hysteresis", low_water=5, high_water=20), "abfafbcac32b574d98e2ef69"),
    ],
)
def test_ids_are_nemo_gyms(given_policy, digest):
    assert history.policy_id(given_policy) == f"osworld-history-policy-{digest}"


@pytest.mark.parametrize(
    ("given_policy", "message"),
    [
        (History(), "no history policy None; choose one of none, full, fixed"),
        (policy("sliding"), "no history policy 'sliding'"),
        (policy("fixed"), "needs keep_images; missing"),
        (policy("fixed", keep_images=0), "at least 1, got 0"),
        (policy("fixed", keep_images=True), "must be an integer"),
        (policy("fixed", keep_images=3, size=1), r"not understood: \['size'\]"),
        (policy("none", max_images=3), r"not understood: \['max_images'\]"),
        (policy("hysteresis", low=3, high=3), "use fixed for equal marks"),
        (policy("hysteresis", low=3, low_water=3, high=4), "given twice"),
        (policy("sink_window", sink=4, low=4, high=9), r"low_water \(4\) must exceed sink \(4\)"),
        (policy("sink_window", sink=1, low=4, high=3), "high_water >= low_water"),
        (policy("full", max_image_tokens=3), "needs tokens_per_image"),
    ],
)
def test_wrong_policies_are_explained(given_policy, message):
    with pytest.raises(history.HistoryError, match=message):
        history.initial_window(given_policy)


def test_text_is_kept_unless_a_limit_says_otherwise():
    kept = history.kept_turns
    for given_policy, expected in (
        (policy("fixed", keep_images=3), tuple(range(9))),
        (policy("fixed", keep_images=3, max_text_turns=0), (7, 8)),
        (policy("fixed", keep_images=3, max_text_turns=2), (5, 6, 7, 8)),
        (policy("none"), ()),
    ):
        assert kept(given_policy, walk(given_policy, 10)[1], 9) == expected


def test_overflow_takes_one_image_at_a_time_and_is_remembered():
    given_policy = policy("sink_window", sink=1, low=3, high=6)
    _, window = walk(given_policy, 6)
    assert history.live_turns(given_policy, window, 5) == (0, 1, 2, 3, 4, 5)
    shown = []
    while (smaller := history.shrink(given_policy, window, 5)) is not None:
        window = smaller
        shown.append(history.live_turns(given_policy, window, 5))
    assert shown == [(0, 2, 3, 4, 5), (0, 3, 4, 5), (0, 4, 5), (0, 5)]
    assert window.limit == 2
    assert history.live_turns(given_policy, history.advance(given_policy, window, 6), 6) == (0, 6)


def test_what_fitted_once_may_grow_no_further():
    given_policy = policy("hysteresis", low=2, high=6)
    _, window = walk(given_policy, 6)
    window = history.shrink(given_policy, window, 5)
    shown = []
    for turn in range(6, 12):
        window = history.advance(given_policy, window, turn)
        shown.append(len(history.live_turns(given_policy, window, turn)))
    assert shown == [2, 3, 4, 5, 2, 3]


POLICIES = st.one_of(
    st.just(policy("none")),
    st.builds(lambda limit: policy("full", **limit), st.sampled_from([{}, {"max_images": 3}])),
    st.builds(lambda keep: policy("fixed", keep_images=keep), st.integers(1, 8)),
    st.builds(lambda low, more: policy("hysteresis", low=low, high=low + more), st.integers(1, 6), st.integers(1, 6)),
    st.builds(
        lambda sink, low, more: policy("sink_window", sink=sink, low=sink + low, high=sink + low + more),
        st.integers(1, 3),
        st.integers(1, 4),
        st.integers(0, 4),
    ),
)


@given(given_policy=POLICIES, overflows=st.sets(st.integers(0, 30), max_size=4))
def test_the_current_screenshot_is_always_shown(given_policy, overflows):
    window = history.initial_window(given_policy)
    sink = given_policy.params.get("sink", 0)
    for turn in range(31):
        window = history.advance(given_policy, window, turn)
        if turn in overflows:
            before = history.live_turns(given_policy, window, turn)
            smaller = history.shrink(given_policy, window, turn)
            if smaller is None:
                assert len(before) <= sink + 1
            else:
                assert len(history.live_turns(given_policy, smaller, turn)) == len(before) - 1
                window = smaller
        shown = history.live_turns(given_policy, window, turn)
        assert shown[-1] == turn
        assert list(shown) == sorted(set(shown))
        assert shown[: min(sink, turn + 1)] == tuple(range(min(sink, turn + 1)))
        assert set(shown[:-1]) <= set(history.kept_turns(given_policy, window, turn)) or given_policy.name == "none"
        assert history.advance(given_policy, window, turn).image_start == window.image_start
