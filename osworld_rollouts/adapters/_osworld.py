"""What OSWorld's two prompt agents share: observation variants, how turns are shown, trimming.

Source of the texts: xlang-ai/OSWorld, `mm_agents/prompts.py` and `mm_agents/agent.py` (`PromptAgent`), Apache-2.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from osworld_rollouts.adapters._chat import Chat, fill
from osworld_rollouts.adapters._contract import Options
from osworld_rollouts.adapters.accessibility import numbered
from osworld_rollouts.contracts.model import ObservationNeeds, PastTurn, PromptInput, View
from osworld_rollouts.contracts.request import History, Sampling

if TYPE_CHECKING:
    from osworld_rollouts.contracts.desktop import MediaRef

Variant = Literal["screenshot", "a11y_tree", "screenshot_a11y_tree", "som"]

OBSERVATION = {
    "screenshot": "For each step, you will get an observation of an image, which is the screenshot of the computer screen and you will predict the action of the computer based on the image.",
    "a11y_tree": "For each step, you will get an observation of the desktop by accessibility tree, which is based on AT-SPI library. And you will predict the action of the computer based on the accessibility tree.",
    "screenshot_a11y_tree": "For each step, you will get an observation of the desktop by 1) a screenshot; and 2) accessibility tree, which is based on AT-SPI library. \nAnd you will predict the action of the computer based on the screenshot and accessibility tree.",
    "som": "For each step, you will get an observation of the desktop by 1) a screenshot with interact-able elements marked with numerical tags; and 2) accessibility tree, which is based on AT-SPI library. And you will predict the action of the computer based on the image and text information.",
}
TASK = "\nYou are asked to complete the following task: {instruction}"
TURN = {
    "screenshot": "Given the screenshot as below. What's the next step that you will do to help with the task?",
    "a11y_tree": "Given the info from accessibility tree as below:\n{tree}\nWhat's the next step that you will do to help with the task?",
    "screenshot_a11y_tree": "Given the screenshot and info from accessibility tree as below:\n{tree}\nWhat's the next step that you will do to help with the task?",
    "som": "Given the tagged screenshot and info from accessibility tree as below:\n{tree}\nWhat's the next step that you will do to help with the task?",
}
PAST_SOM_TURN = "Given the tagged screenshot as below. What's the next step that you will do to help with the task?"
TURN_WITHOUT_IMAGE = "The observation of this earlier step is no longer shown."
NO_VALID_ACTION = "No valid action"
FEEDBACK = "Your last reply could not be used: {message}\nReply again for the same screenshot, in the required format."
ERROR = "The last action ended with an error (exit code {code}):\n{error}"
TRIMMED = "[...]\n"

SAMPLING = Sampling(max_tokens=1500, temperature=1.0, top_p=0.9)
"""OSWorld's `run.py`: temperature 1.0, top_p 0.9, max_tokens 1500."""
HISTORY = History(name="fixed", params={"keep_images": 4, "max_text_turns": 0})
"""OSWorld's `max_trajectory_length` 3: three earlier turns and the current one, nothing of older ones."""


class OSWorldOptions(Options):
    """Options of the two OSWorld adapters."""

    observation: Variant = "screenshot"
    """What the model sees: a screenshot, the accessibility tree, both, or a screenshot with numbered marks and the tree."""
    tree_max_chars: int = 40_000
    """Longest accessibility tree that is shown; OSWorld's limit is 10,000 tokens, about this many characters."""


def needs(variant: Variant) -> ObservationNeeds:
    """What has to be observed for a variant."""
    return ObservationNeeds(
        screenshot=variant != "a11y_tree", accessibility_tree=variant != "screenshot", set_of_marks=variant == "som"
    )


def prompts(options: OSWorldOptions) -> dict[str, str]:
    """The texts around each observation, as far as the options use them."""
    turn = TURN[options.observation]
    return {
        "turn": turn,
        "past_turn": PAST_SOM_TURN if options.observation == "som" else turn,
        "turn_without_image": TURN_WITHOUT_IMAGE,
        "no_valid_action": NO_VALID_ACTION,
        "feedback": FEEDBACK,
        "error": ERROR,
        "trimmed": TRIMMED,
    }


def conversation(prompt: PromptInput, system: str, options: OSWorldOptions) -> Chat:
    """System message with the task, then each kept turn and its reply, then the current observation."""
    chat = Chat(detail="high")
    chat.say("system", system + fill(TASK, instruction=prompt.instruction))
    before: PastTurn | None = None
    for past in prompt.past:
        if past.live:
            text = PAST_SOM_TURN if options.observation == "som" else _turn_text(past.view, options)
            chat.say("user", _with_error(text, before, options), _image(past.view, options))
        else:
            chat.say("user", _with_error(TURN_WITHOUT_IMAGE, before, options))
        said = past.text.strip() if past.failure is None else ""
        chat.say("assistant", said or NO_VALID_ACTION)
        before = past
    chat.say("user", _with_error(_turn_text(prompt.current, options), before, options), _image(prompt.current, options))
    for rejected in prompt.rejected:
        chat.say("assistant", rejected.text.strip() or NO_VALID_ACTION)
        chat.say("user", fill(FEEDBACK, message=rejected.failure.message if rejected.failure else "it holds no action"))
    return chat


def error_text(turn: PastTurn | None) -> str | None:
    """What went wrong in the guest in a turn, as the model may be told."""
    for outcome in reversed(turn.outcomes if turn else ()):
        if outcome.returncode:
            return fill(ERROR, code=outcome.returncode, error=outcome.error.strip()[-1000:])
    return None


def _with_error(text: str, before: PastTurn | None, options: OSWorldOptions) -> str:
    error = error_text(before) if options.show_errors else None
    return f"{error}\n{text}" if error else text


def _turn_text(view: View, options: OSWorldOptions) -> str:
    tree = view.accessibility_tree or ""
    if tree and options.observation == "som":
        tree = numbered(tree)
    if len(tree) > options.tree_max_chars:
        tree = tree[: options.tree_max_chars] + TRIMMED
    return fill(TURN[options.observation], tree=tree)


def _image(view: View, options: OSWorldOptions) -> MediaRef | None:
    return None if options.observation == "a11y_tree" else view.image
