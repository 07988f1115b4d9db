"""The policy model's side: the request an adapter renders, the reply it parses, and what lies between."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from osworld_rollouts.contracts._base import Contract
from osworld_rollouts.contracts.action import Action
from osworld_rollouts.contracts.desktop import MediaRef
from osworld_rollouts.contracts.identity import Sha256
from osworld_rollouts.contracts.steps import HistoryWindow, OperationOutcome, ParseFailure

Api = Literal["chat_completions", "responses", "messages", "generate"]


class ImageGeometry(Contract):
    """Size in pixels of the image the model sees, and of the screen its actions land on."""

    screen_width: int
    screen_height: int
    image_width: int
    image_height: int


class View(Contract):
    """What the model may be shown of one moment: the image already in the adapter's geometry, and text observations."""

    image: MediaRef | None = None
    accessibility_tree: str | None = Field(default=None, description="already linearised, in the adapter's text form")
    marks: tuple[tuple[int, int, int, int], ...] = Field(
        default=(), description="set of marks: (x, y, w, h) in screen pixels, mark n is entry n-1"
    )
    terminal: str | None = None


class PastTurn(Contract):
    """A finished turn as an adapter may render it. `live` says whether the history policy keeps its screenshot."""

    turn: int
    view: View
    live: bool
    text: str = ""
    reasoning: str | None = None
    output: tuple[dict[str, JsonValue], ...] = Field(
        default=(), description="the reply's items as received (tool calls, response items)"
    )
    response_id: str | None = None
    actions: tuple[Action, ...] = ()
    outcomes: tuple[OperationOutcome, ...] = ()
    failure: ParseFailure | None = None


class PromptInput(Contract):
    """Everything an adapter may use to render one request. Pure data: no clock, no files."""

    instruction: str
    turn: int
    max_turns: int
    geometry: ImageGeometry
    window: HistoryWindow
    past: tuple[PastTurn, ...]
    current: View
    rejected: tuple[PastTurn, ...] = Field(
        default=(), description="replies of this turn that could not be used, oldest first, when feedback is on"
    )
    password: str = "password"  # noqa: S105 - the public password of OSWorld's image


class ModelRequest(Contract):
    """A request as it will be sent, with images as `media://<sha256>` where a data URL or base64 string will stand."""

    api: Api
    body: dict[str, JsonValue]
    media: tuple[MediaRef, ...] = Field(default=(), description="images in the order they appear in the body")
    headers: dict[str, str] = Field(
        default_factory=dict, description="what the API wants as headers (anthropic-beta); never a secret"
    )
    source: dict[str, JsonValue] | None = Field(
        default=None, description="what a request of token ids was made from; recorded, never sent"
    )


class ToolCall(Contract):
    """A native tool call; `arguments` is the raw string the server sent."""

    id: str | None = None
    name: str
    arguments: str


class Reply(Contract):
    """The facts of a server's reply. None means that the server did not give it; nothing is filled in."""

    api: Api
    text: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    output: tuple[dict[str, JsonValue], ...] = Field(
        default=(), description="items of a Responses or Messages reply, as received"
    )
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    truncated: bool | None = Field(
        default=None, description="cut by the token limit: from ids where there are ids, else from finish_reason"
    )
    response_id: str | None = None
    served_model: str | None = None
    system_fingerprint: str | None = None
    weight_version: str | None = None
    usage: dict[str, JsonValue] | None = None
    prompt_tokens: int | None = Field(default=None, description="the server's count, from usage")
    completion_tokens: int | None = Field(default=None, description="the server's count, from usage")
    cached_tokens: int | None = Field(default=None, description="prompt tokens taken from the server's prefix cache")
    choices: int = Field(default=1, description="how many samples the reply holds; only the first is read")
    prompt_token_ids: tuple[int, ...] | None = None
    generated_token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = Field(default=None, description="of the sampled tokens, in order")
    logprob_token_ids: tuple[int, ...] | None = Field(
        default=None, description="ids named by the logprob entries themselves, an independent second source"
    )
    image_runs: tuple[tuple[int, int], ...] | None = Field(
        default=None,
        description="(first position, length) of each image among the prompt ids, where the server says so itself",
    )
    missing: tuple[str, ...] = Field(
        default=(), description="`fact: reason` for each fact that was asked for and not given"
    )


class ParsedPart(Contract):
    """A stretch of the reply's text (character offsets) and what it became: the index of an action, or dropped with a reason.

    `source` is `text`, or `tool_calls[i]` (offsets into its arguments), or `output[i]` (an item as received, as a whole: 0 to 1).
    """

    source: str = "text"
    start: int
    end: int
    action: int | None = None
    dropped: str | None = None


class ParsedReply(Contract):
    """What an adapter made of a reply: actions, or a failure; `parts` accounts for the text; `notes` says what was changed (clamped, repaired)."""

    actions: tuple[Action, ...] = ()
    failure: ParseFailure | None = None
    parts: tuple[ParsedPart, ...] = ()
    notes: tuple[str, ...] = ()
    action_text: str | None = Field(
        default=None, description="the model's own words for the action, where the protocol has them"
    )
    thought: str | None = None


class ObservationNeeds(Contract):
    """What an adapter wants to see each turn."""

    screenshot: bool = True
    accessibility_tree: bool = False
    set_of_marks: bool = False
    terminal: bool = False


class AdapterIdentity(Contract):
    """Name, version and prompt digest: changing a byte of a prompt changes the version."""

    name: str
    version: str
    prompt_sha256: Sha256
