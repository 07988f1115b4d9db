"""Client of an unmodified OSWorld server, with the operation ledger kept from outside.

Such a server knows no operation ids. So every effect is wrapped in Python (`stock_wrapper.py`) that the server's plain
`POST /execute` runs, and the guest's file system holds the ledger, by the rules of `guest/ledger.py`. How each endpoint is done:

- `/execute` and `/setup/execute` are commands: the wrapper runs them itself, in a session of their own, with their output in files. OSWorld's
  server kills a command after 120 s, answers 500 for output that is not UTF-8, and waits for daemons that keep a pipe; here the
  wrapper's short answer is all it sees, the command goes on when the server kills the wrapper, and its end is still recorded.
- Every other effect with a JSON body or none (`/setup/launch`, `/setup/open_file`, `/setup/activate_window`, `/run_python`, ...) is what
  only the server can do: the wrapper asks it from inside the guest, at 127.0.0.1, and records its answer.
- `/setup/upload` is sent as it is: the same bytes to the same place twice are the same file. It is not in the ledger, so fence and
  sequence are not checked for it.
- Reads are sent as they are.

Limits: what a background program prints after its command ended is not waited for; whoever works on the desktop can destroy the
ledger (then operations are *unknown*, never *absent*); a command that the time limit ends is killed with its process group only.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import shlex
import struct
import zlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Self

from osworld_rollouts.desktops.guest_client import (
    CommandResult,
    GuestClient,
    GuestRefused,
    GuestReply,
    Operation,
    OperationStatus,
    ReplyLost,
    refusal,
)
from osworld_rollouts.desktops.png_check import png_fault

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import SecretStr

    from osworld_rollouts.desktops._provider import DesktopRecord

LEDGER_FOLDER = "~/.osworld-rollouts/ledger"
"""Where in the guest the ledger lies, unless told otherwise; each lease has a folder of its own below it."""
INNER_PORT = 5000
"""Where OSWorld's server listens inside its guest (`desktop_env/server/main.py`); the port outside may be another."""
WAIT_S = 45.0
"""Longest wait of the wrapper for an effect, well below the server's limit of 120 s; then it says `running` and is asked again."""
ASK_WAIT_S = 20.0
START_S = 30.0
"""What a busy guest may take to start Python."""
COMMANDS = frozenset({"/execute", "/setup/execute"})
UPLOAD = "/setup/upload"
_LONGEST_WORD = 131_000  # Linux passes 131,072 bytes in one argument (MAX_ARG_STRLEN)
_LONGEST_BODY = 1_500_000  # and 2 MiB in all, environment included


class _CutShort(ReplyLost):
    """There is an answer, but not the wrapper's: the server cut it short, or Python is missing."""


class StockGuestClient(GuestClient):
    """A `GuestClient` of a guest whose server is OSWorld's own. `lease_id` is whose ledger is meant; call `open` first, once.

    Effects without an `operation` are sent plainly, as to any server.
    """

    def __init__(
        self,
        *,
        lease_id: str,
        socket: Path | None = None,
        base_url: str = "http://guest",
        token: SecretStr | str | None = None,
        ledger: str = LEDGER_FOLDER,
        inner_port: int = INNER_PORT,
    ) -> None:
        super().__init__(socket=socket, base_url=base_url, token=token)
        self._common = {"root": ledger, "lease": lease_key(lease_id), "port": inner_port}

    @classmethod
    def of(cls, record: DesktopRecord) -> Self:
        """A client of the attached machine in `record`."""
        ends = record.endpoints
        return cls(
            lease_id=record.lease_id,
            socket=ends.server,
            base_url=ends.base_url,
            inner_port=ends.inner_port,
        )

    # --- the ledger itself ---

    async def open(self, *, replaces: str = "", timeout: float = 60.0) -> dict[str, Any]:
        """Put this lease's ledger in force and say what the machine is: `system`, `release`, `packages`, `python`, `serves`.

        `replaces` is the lease whose ledger may still be in force there because it ended without our word.

        Raises:
            GuestRefused: 409 `machine_leased` when another lease holds the machine; 507 when the ledger cannot be written.
        """
        return await self._asked({"do": "open", "replaces": lease_key(replaces) if replaces else ""}, timeout)

    async def close_ledger(self, timeout: float = 10.0) -> None:
        """End this lease's ledger: whatever arrives for it from now on is refused."""
        await self._asked({"do": "close"}, timeout)

    async def operation(self, operation_id: str, timeout: float = 20.0) -> OperationStatus | None:
        """What the ledger knows of an operation, by a harmless read; see `GuestClient.operation`.

        A machine that was reset meanwhile has lost its ledger: that is an error, never "it did not arrive".
        """
        found = await self._asked({"do": "ask", "id": operation_id, "wait": 0}, timeout)
        if found["state"] == "absent":
            return None
        body = _body(found).decode("utf-8", "replace") if found["state"] == "finished" else None
        return OperationStatus(
            operation_id=operation_id,
            seq=found["seq"],
            fence=found["fence"],
            state=found["state"],
            started_at=found["started_at"],
            finished_at=found.get("finished_at"),
            status=found.get("status"),
            body=body,
            returncode=_returncode(body),
        )

    async def health(self, timeout: float = 10.0) -> dict[str, Any]:
        """The answer `GET /health` of our own server gives, made of a screenshot and the state of the ledger.

        Raises:
            GuestError: the server does not answer, or this lease's ledger is not in force.
        """
        state = await self._asked({"do": "state"}, timeout)
        screen = await self.screenshot(timeout=timeout)
        width, height = struct.unpack(">II", screen[16:24]) if len(screen) >= 24 else (0, 0)
        fault = png_fault(screen, width, height)
        return {
            "ok": True,
            "ready": not fault,
            "detail": fault,
            "screen": {"width": width, "height": height},
            "version": "stock",
            "fence": state["fence"],
            "last_seq": state["last_seq"],
        }

    # --- effects ---

    async def execute(
        self,
        command: list[str] | str,
        *,
        shell: bool = False,
        operation: Operation | None = None,
        timeout: float = 135.0,
    ) -> CommandResult:
        """Run a command in the guest; see `GuestClient.execute`. With an operation it may run longer than the server's 120 s."""
        if operation is None:
            return await super().execute(command, shell=shell, timeout=timeout)
        body = json.dumps({"command": command, "shell": shell}).encode()
        reply = _accepted(await self.perform("/execute", body, operation))
        value = json.loads(reply.body)
        return CommandResult(value["output"], value["error"], value["returncode"], reply.replayed)

    async def setup(
        self, step: str, parameters: dict[str, Any], *, operation: Operation | None = None, timeout: float = 135.0
    ) -> GuestReply:
        """`POST /setup/<step>` with JSON parameters."""
        if operation is None:
            return await super().setup(step, parameters, timeout=timeout)
        return _accepted(await self.perform(f"/setup/{step}", json.dumps(parameters).encode(), operation))

    async def write_file(
        self, path: str, data: bytes, *, operation: Operation | None = None, timeout: float = 300.0
    ) -> None:
        """Write a file in the guest. Not an operation here: repeating it is harmless, a reader may see half of it."""
        del operation
        await super().write_file(path, data, timeout=timeout)

    async def perform(
        self, path: str, body: bytes, operation: Operation, content_type: str = "application/json"
    ) -> GuestReply:
        """`POST path`, at most once for each operation id, with whatever the server answers, errors too.

        Raises:
            GuestUnreachable: not sent.
            ReplyLost: sent, and neither answer nor ledger could be had. Repeating it is safe.
            GuestRefused: by the ledger: `stale_fence`, `stale_sequence`, `operation_mismatch`, `operation_interrupted`,
                `operation_running`, `ledger_unavailable`; or 400 for a command that is none.
        """
        ask: dict[str, Any] = {
            "do": "post",
            "id": operation.operation_id,
            "seq": operation.seq,
            "fence": operation.fence,
            "timeout": operation.timeout,
            "wait": min(WAIT_S, operation.timeout + 5),
            "request": f"POST {path}",
            "digest": hashlib.sha256(content_type.encode() + b"\0" + body).hexdigest(),
            "path": path,
            "content_type": content_type,
        }
        if path in COMMANDS:
            words, shell = _command(body)
            ask |= {"do": "run", "shell": shell}
        else:
            packed = base64.b64encode(zlib.compress(body)).decode()
            if len(packed) > _LONGEST_BODY:
                raise GuestRefused(413, "body_too_large", f"{len(body)} bytes for {path} cannot be passed on", {})
            words = [packed[at : at + _LONGEST_WORD] for at in range(0, len(packed), _LONGEST_WORD)]
        try:
            found = await self._asked(ask, ask["wait"] + START_S, words)
        except _CutShort:
            # The wrapper was killed, not the effect, which is in a session of its own.
            found = {"state": "running"}
        replayed = found.get("replayed", False)
        found = await self._ended(found, operation)
        headers = {"content-type": found["content_type"]} | ({"x-operation-replayed": "1"} if replayed else {})
        return GuestReply(found["status"], headers, _body(found))

    async def _ended(self, found: dict[str, Any], operation: Operation) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + operation.timeout + START_S
        name = operation.operation_id
        wait = ASK_WAIT_S
        while found["state"] == "running" and loop.time() < deadline:
            try:
                found = await self._asked({"do": "ask", "id": name, "wait": wait}, wait + START_S)
            except _CutShort:
                if not wait:
                    raise
                wait = 0
            await asyncio.sleep(0 if wait else 0.5)
        match found["state"]:
            case "finished":
                return found
            case "running":
                raise GuestRefused(409, "operation_running", f"operation {name} is still running", found)
            case "interrupted":
                message = f"operation {name} was begun and its end is unknown; it is never run again"
                raise GuestRefused(409, "operation_interrupted", message, found)
            case state:
                raise ReplyLost(f"operation {name} was sent and its ledger entry is {state}")

    async def _asked(self, ask: dict[str, Any], timeout: float, words: list[str] | None = None) -> dict[str, Any]:
        """One run of the wrapper.

        Raises:
            ReplyLost: there is an answer, but not the wrapper's: the server cut it short, or Python is missing.
            GuestRefused: by the ledger.
        """
        command = [
            "python3",
            "-I",
            "-c",
            _wrapper(),
            json.dumps({**self._common, **ask}, sort_keys=True),
            *(words or ()),
        ]
        reply = await self.request(
            "POST",
            "/execute",
            data=json.dumps({"command": command, "shell": False}).encode(),
            headers={"Content-Type": "application/json"},
            timeout=timeout,
        )
        try:
            found = json.loads(json.loads(reply.body)["output"])
        except (ValueError, KeyError, TypeError) as error:
            said = reply.body[:200].decode("utf-8", "replace")
            raise _CutShort(
                f"the guest's server answered {reply.status} instead of the wrapper (python3 in the guest): {said} … "
                f"{reply.body[-200:].decode('utf-8', 'replace')}"
            ) from error
        if found["state"] == "refused":
            raise GuestRefused(found["status"], found["kind"], found["message"], found)
        return found


def wrapped(path: str, content_type: str) -> bool:
    """Whether an effect goes through the ledger: everything but forms, of which OSWorld's server has one, the upload."""
    return path != UPLOAD and not content_type.lower().startswith(("multipart/", "application/x-www-form-urlencoded"))


def lease_key(lease_id: str) -> str:
    """Name of a lease's folder below the ledger's."""
    return hashlib.sha256(lease_id.encode()).hexdigest()[:16]


@cache
def _wrapper() -> str:
    source = resources.files("osworld_rollouts.desktops").joinpath("stock_wrapper.py").read_bytes()
    packed = base64.b64encode(zlib.compress(source, 9)).decode()
    return f"import base64,zlib\nexec(zlib.decompress(base64.b64decode({packed!r})))"


def _command(body: bytes) -> tuple[list[str], bool]:
    """The words of a command as OSWorld's server reads them, and whether a shell reads the first.

    A shell's word has a mark before it, because the server expands `~/` at the beginning of every word.
    """
    try:
        data: dict[str, Any] = json.loads(body)
        command, shell = data.get("command"), bool(data.get("shell", False))
        if isinstance(command, str):
            command = [command] if shell else shlex.split(command)
    except (ValueError, AttributeError) as error:
        raise GuestRefused(400, "bad_request", f"the command cannot be read: {error}", {}) from error
    if not command or not isinstance(command, list):
        raise GuestRefused(400, "bad_request", "command is required: a list of words, or a string", {})
    words = [str(word) for word in command]
    for word in words:
        if "\0" in word or len(word.encode()) >= _LONGEST_WORD:
            what = f"a word of the command has {len(word)} characters or a null byte: {word[:60]!r}"
            raise GuestRefused(400, "bad_request", f"{what}; a word holds {_LONGEST_WORD} bytes", {})
    return ["." + words[0], *words[1:]] if shell else words, shell


def _accepted(reply: GuestReply) -> GuestReply:
    if reply.status >= 400:
        raise refusal(reply)
    return reply


def _body(found: dict[str, Any]) -> bytes:
    if "packed_body" in found:
        return zlib.decompress(base64.b64decode(found["packed_body"]))
    return str(found["body"]).encode()


def _returncode(body: str | None) -> int | None:
    try:
        value = json.loads(body or "{}")
    except ValueError:
        return None
    code = value.get("returncode", value.get("return_code")) if isinstance(value, dict) else None
    return code if isinstance(code, int) and not isinstance(code, bool) else None
