"""What an adapter is: it owns one model's wire format and nothing else.

`render` turns a task, the turns that the history policy kept and the current observation into a request; `parse` turns a
reply into actions or a typed failure, and accounts for every character of it. Both are pure: no network, no files, no
clock. An adapter never turns a failure into FAIL, never scores and never decides when an episode ends.

A new adapter is a file like `pyautogui.py` with the same functions in the same order (docs/adapters.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from osworld_rollouts.contracts._base import Contract, canonical_digest
from osworld_rollouts.contracts.action import TERMINAL_KINDS
from osworld_rollouts.contracts.model import (
    AdapterIdentity,
    Api,
    ImageGeometry,
    ModelRequest,
    ObservationNeeds,
    ParsedReply,
    PromptInput,
    Reply,
)
from osworld_rollouts.contracts.request import History, ParsePolicy, Sampling
from osworld_rollouts.contracts.steps import ParseFailure

Marks = tuple[tuple[int, int, int, int], ...]
"""Set of marks: (x, y, w, h) in screen pixels, mark n is entry n-1 (`View.marks`)."""


class FailureKind(StrEnum):
    """Why a reply holds no action that may be executed (`ParseFailure.kind`)."""

    EMPTY = "empty"
    """Nothing was said: no text and no call."""
    TRUNCATED = "truncated"
    """The token limit cut the reply before its action was complete."""
    NO_ACTION = "no_action"
    """There is text, but nothing in it that the protocol calls an action."""
    UNPARSEABLE = "unparseable"
    """An action is there and cannot be read: bad JSON, bad Python, a missing part."""
    UNKNOWN_ACTION = "unknown_action"
    """The action is readable, and the protocol has no such action, key or status."""
    OFF_SCREEN = "off_screen"
    """Coordinates beyond the screen, in a protocol that rejects them."""
    MULTIPLE_WHERE_ONE_ALLOWED = "multiple_where_one_allowed"
    """Several actions, in a protocol that takes one."""
    SAFETY_CHECK = "safety_check"
    """The server wants a person to acknowledge a safety check, and the policy does not."""
    REFUSED = "refused"
    """The server says that the model refused."""


@runtime_checkable
class ModelAdapter(Protocol):
    """One model protocol, in one version, with its options set."""

    name: ClassVar[str]
    version: ClassVar[str]
    api: ClassVar[Api]

    def needs(self) -> ObservationNeeds:
        """What it wants to see each turn."""
        ...

    def geometry(self, screen_width: int, screen_height: int) -> ImageGeometry:
        """Size of the image that the model is sent for a screen of this size."""
        ...

    def sampling_defaults(self) -> Sampling:
        """Sampling parameters of the makers' own runs; a request's own values win."""
        ...

    def history_default(self) -> History:
        """History policy of the makers' own runs."""
        ...

    def parse_policy_default(self) -> ParsePolicy:
        """What the makers do with a reply that holds no action."""
        ...

    def identity(self) -> AdapterIdentity:
        """Name, version and digest of every prompt text."""
        ...

    def prompts(self) -> dict[str, str]:
        """Every fixed text that can appear in a request, by name: what the version stands for."""
        ...

    def actions(self) -> tuple[str, ...]:
        """The action space in the protocol's own words."""
        ...

    def render(self, prompt: PromptInput, model_name: str, sampling: Sampling) -> ModelRequest:
        """The exact request, with images as `media://<sha256>`."""
        ...

    def parse(self, reply: Reply, geometry: ImageGeometry, marks: Marks = ()) -> ParsedReply:
        """Actions or a failure. Never raises, whatever the reply is."""
        ...


class Options(Contract):
    """Options every adapter takes."""

    show_errors: bool = False
    """Tell the model when its last action ended with an error in the guest."""
    one_action: bool = False
    """Refuse a reply that asks for several actions; a terminal one may follow."""


OptionsT = TypeVar("OptionsT", bound=Options)


class BaseAdapter(ABC, Generic[OptionsT]):
    """What adapters share: a screenshot in screen size, no surprises. Each names its own `options` class."""

    name: ClassVar[str]
    version: ClassVar[str]
    api: ClassVar[Api] = "chat_completions"
    options_type: ClassVar[type[Options]] = Options

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def needs(self) -> ObservationNeeds:
        """A screenshot."""
        return ObservationNeeds()

    def geometry(self, screen_width: int, screen_height: int) -> ImageGeometry:
        """The screen as it is."""
        return ImageGeometry(
            screen_width=screen_width, screen_height=screen_height, image_width=screen_width, image_height=screen_height
        )

    def sampling_defaults(self) -> Sampling:
        """Nothing is sent that was not asked for."""
        return Sampling()

    @abstractmethod
    def history_default(self) -> History:
        """See `ModelAdapter`."""

    def parse_policy_default(self) -> ParsePolicy:
        """The turn is consumed."""
        return ParsePolicy()

    def identity(self) -> AdapterIdentity:
        """Name, version and digest of `prompts()`."""
        return AdapterIdentity(name=self.name, version=self.version, prompt_sha256=canonical_digest(self.prompts()))

    def prompts(self) -> dict[str, str]:
        """None."""
        return {}

    def checked(self, parsed: ParsedReply) -> ParsedReply:
        """The same, or the failure `multiple_where_one_allowed`. Every `parse` ends with it."""
        acting = [action for action in parsed.actions if action.kind not in TERMINAL_KINDS]
        if not self.options.one_action or len(acting) < 2:
            return parsed
        message = f"the reply asks for {len(acting)} actions; one is allowed"
        failure = ParseFailure(kind=FailureKind.MULTIPLE_WHERE_ONE_ALLOWED, message=message)
        dropped = [
            part if part.action is None else part.model_copy(update={"action": None, "dropped": message})
            for part in parsed.parts
        ]
        return parsed.model_copy(update={"actions": (), "failure": failure, "parts": tuple(dropped)})

    @abstractmethod
    def actions(self) -> tuple[str, ...]:
        """See `ModelAdapter`."""

    @abstractmethod
    def render(self, prompt: PromptInput, model_name: str, sampling: Sampling) -> ModelRequest:
        """See `ModelAdapter`."""

    @abstractmethod
    def parse(self, reply: Reply, geometry: ImageGeometry, marks: Marks = ()) -> ParsedReply:
        """See `ModelAdapter`."""
