"""What a person may do to a running execution: pause, resume, stop after this turn."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError


class Control:
    """Updates with validators, and the same as signals for the parent workflow to pass on."""

    def __init__(self) -> None:
        self.paused = False
        self.stop_requested = False

    @workflow.update
    async def pause(self) -> str:
        """Go no further than the end of this turn; the desktop is kept."""
        self.paused = True
        return "pausing after this turn"

    @pause.validator
    def _may_pause(self) -> None:
        if self.paused:
            raise ApplicationError("already paused; resume it first")
        if self.stop_requested:
            raise ApplicationError("it is stopping; there is nothing to pause")

    @workflow.update
    async def resume(self) -> str:
        """Go on with the next turn."""
        self.paused = False
        return "resumed"

    @resume.validator
    def _may_resume(self) -> None:
        if not self.paused:
            raise ApplicationError("not paused")

    @workflow.update
    async def stop_after_turn(self) -> str:
        """Finish this turn, then evaluate what stands there."""
        self.stop_requested = True
        self.paused = False
        return "stopping after this turn, then evaluating"

    @stop_after_turn.validator
    def _may_stop(self) -> None:
        if self.stop_requested:
            raise ApplicationError("already stopping after this turn")

    @workflow.signal
    def control(self, command: str) -> None:
        """The parent's way in: pause, resume or stop. A command that no longer applies changes nothing."""
        if command == "pause" and not self.stop_requested:
            self.paused = True
        elif command == "resume":
            self.paused = False
        elif command == "stop":
            self.stop_requested, self.paused = True, False
