"""The taxonomy is one table; these are its rules as a table."""

from __future__ import annotations

import pytest

from osworld_rollouts.contracts.outcome import Outcome, OutcomeKind
from osworld_rollouts.outcomes import RULES, EpisodeFacts, Fault, admit, episode_outcome, retry_allowed

K = OutcomeKind
SCORED = {
    K.AGENT_DONE,
    K.AGENT_FAIL,
    K.HORIZON_REACHED,
    K.POLICY_RESPONSE_INVALID,
    K.POLICY_STOPPED,
    K.CONTEXT_OVERFLOW,
    K.DEADLINE_REACHED,
    K.STOPPED_BY_OPERATOR,
}


def test_every_kind_has_a_rule():
    assert set(RULES) == set(OutcomeKind)


@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_rules_are_consistent(kind):
    rule = RULES[kind]
    assert rule.scored is (kind in SCORED)
    assert not (rule.scored and rule.retry_may_help), "a scored end is final"
    assert not (rule.eligible and not rule.scored), "nothing unscored is eligible"
    assert not (rule.eligible and rule.fault is not Fault.POLICY), "only the policy's own ends count"
    assert rule.meaning


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (EpisodeFacts(terminal_action="done"), K.AGENT_DONE),
        (EpisodeFacts(terminal_action="fail"), K.AGENT_FAIL),
        (EpisodeFacts(terminal_action="call_user"), K.POLICY_STOPPED),
        (EpisodeFacts(turns_used_up=True), K.HORIZON_REACHED),
        (EpisodeFacts(invalid_replies=True), K.POLICY_RESPONSE_INVALID),
        (EpisodeFacts(overflow=True), K.CONTEXT_OVERFLOW),
        (EpisodeFacts(deadline=True), K.DEADLINE_REACHED),
        (EpisodeFacts(operator_stop=True), K.STOPPED_BY_OPERATOR),
        (EpisodeFacts(policy_stopped=True), K.POLICY_STOPPED),
        # what the agent said on the last turn wins over the horizon
        (EpisodeFacts(terminal_action="done", turns_used_up=True, deadline=True), K.AGENT_DONE),
        # a rollout that a person stopped on its last turn was stopped, not finished
        (EpisodeFacts(operator_stop=True, turns_used_up=True), K.STOPPED_BY_OPERATOR),
        (EpisodeFacts(deadline=True, turns_used_up=True), K.DEADLINE_REACHED),
        (EpisodeFacts(invalid_replies=True, turns_used_up=True), K.POLICY_RESPONSE_INVALID),
    ],
)
def test_precedence(facts, kind):
    assert episode_outcome(facts) is kind


@pytest.mark.parametrize("facts", [EpisodeFacts(), EpisodeFacts(terminal_action="click")])
def test_contradictory_facts_raise(facts):
    with pytest.raises(ValueError):
        episode_outcome(facts)


@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_retry_respects_table_and_budget(kind):
    assert retry_allowed(kind, 1, 3) is RULES[kind].retry_may_help
    assert not retry_allowed(kind, 3, 3)


@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_no_score_is_never_admitted(kind):
    assert not admit(kind, None).eligible


@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_admission_looks_at_reliability_not_at_the_score(score):
    assert admit(K.HORIZON_REACHED, score).eligible
    assert not admit(K.DEADLINE_REACHED, score).eligible
    assert admit(K.AGENT_DONE, score, exact=False, violations=3).eligible
    refused = admit(K.AGENT_DONE, score, exact=True, violations=1)
    assert not refused.eligible
    assert "1 time" in refused.reason


def test_mask_sample_is_the_negation():
    assert Outcome(kind=K.AGENT_DONE, eligible=False).mask_sample
    assert not Outcome(kind=K.AGENT_DONE, eligible=True).mask_sample
