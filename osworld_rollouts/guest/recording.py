"""Screen recording: H.264 at 5 frames a second.

OSWorld's server records 30 frames a second with the encoder's default preset, which takes more than one core by itself; five frames at
the fastest preset take a tenth of it and show every step an agent makes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

from .wire import ApiError, Reply

FRAMES_PER_S = 5
STOP_TIMEOUT_S = 15


class Recorder:
    """At most one recording at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._path = Path(tempfile.gettempdir()) / f"recording-{os.getuid()}-{os.getpid()}.mp4"

    def start(self, width: int, height: int) -> Reply:
        """Begin to record.

        Raises:
            ApiError: 400 when a recording runs, 500 when the recorder cannot be started.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                raise ApiError(400, "recording_running", "Recording is already in progress.")
            self._path.unlink(missing_ok=True)
            command = [
                "ffmpeg", "-nostdin", "-loglevel", "error", "-y", "-f", "x11grab", "-draw_mouse", "1",
                "-framerate", str(FRAMES_PER_S), "-video_size", f"{width}x{height}", "-i", os.environ["DISPLAY"],
                "-c:v", "libx264", "-preset", "ultrafast", "-threads", "1", "-pix_fmt", "yuv420p", str(self._path),
            ]  # fmt: skip
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
            except OSError as error:
                raise ApiError(500, "recording_failed", f"ffmpeg cannot be started: {error}; install ffmpeg") from error
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, said = self._process.communicate(timeout=0.5)
                self._process = None
                raise ApiError(
                    500, "recording_failed", f"ffmpeg ended at once: {said.decode('utf-8', 'replace')[-500:]}"
                )
            return Reply.json({"status": "success", "message": "Started recording successfully."})

    def stop(self) -> Reply:
        """End the recording and return the MP4.

        Raises:
            ApiError: 400 when none runs, 500 when there is no usable file.
        """
        with self._lock:
            process, self._process = self._process, None
            if process is None or process.poll() is not None:
                raise ApiError(400, "recording_absent", "No recording in progress to stop.")
            process.send_signal(signal.SIGINT)
            try:
                _, said = process.communicate(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise ApiError(500, "recording_failed", "ffmpeg did not end its file and was killed") from None
            if not self._path.exists() or self._path.stat().st_size == 0:
                text = said.decode("utf-8", "replace")[-500:]
                raise ApiError(500, "recording_failed", f"the recording is empty: {text}")
            return Reply(content_type="video/mp4", file=self._path)
