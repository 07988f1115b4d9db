"""The tiny model served by a real vLLM, for tests marked `vllm`.

Where it is: VLLM_VENV names a virtual environment that `install_vllm.sh` made (it lies beside the model in the developers'
reference data); TINY_VLM names the model's folder where it is not there. VLLM_URL (http://host:port) names a server that runs
already with the arguments below, which saves a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

MODEL_DIR = Path(
    os.environ.get("TINY_VLM", Path(__file__).resolve().parents[2].parent / "shared/tools/tiny_vlm/model_policy")
)
MODEL = "tiny-vlm"


def missing() -> str:
    """Why these tests cannot run; empty when they can."""
    venv = os.environ.get("VLLM_VENV")
    if not venv:
        return "VLLM_VENV is not set: name the environment that install_vllm.sh made to run against a real vLLM"
    if not (Path(venv) / "bin" / "vllm").exists():
        return f"no vllm in {venv}/bin"
    return "" if (MODEL_DIR / "model.safetensors").exists() else f"no model at {MODEL_DIR} (set TINY_VLM)"


def venv_python() -> str:
    return str(Path(os.environ["VLLM_VENV"]) / "bin" / "python")


class VllmServer:
    """A server of its own; ends with the context. Ready after about a minute."""

    def __init__(self, log: Path, *arguments: str, mode: str = "processed_logprobs", images: int = 24):
        self.log, self.plain = log, not arguments and mode == "processed_logprobs"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        self.root = f"http://127.0.0.1:{self.port}"
        self.base_url = f"{self.root}/v1"
        self.arguments = [
            "serve", str(MODEL_DIR), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(self.port),
            "--dtype", "float32", "--max-model-len", "16384", "--max-num-seqs", "8", "--enforce-eager",
            "--limit-mm-per-prompt", json.dumps({"image": images, "video": 0}), "--logprobs-mode", mode, "--generation-config", "vllm",
            "--enable-scale-out", "--enable-prompt-tokens-details", "--enable-request-id-headers", *arguments,
        ]  # fmt: skip

    def __enter__(self):
        self.process = None
        running = os.environ.get("VLLM_URL")
        if running and self.plain:
            self.root, self.base_url = running.rstrip("/"), f"{running.rstrip('/')}/v1"
            self.port = int(self.root.rsplit(":", 1)[1])
            return self
        environment = {
            **os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo", "VLLM_SERVER_DEV_MODE": "1",
        }  # fmt: skip
        command = [str(Path(os.environ["VLLM_VENV"]) / "bin" / "vllm"), *self.arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.root}/health", timeout=2) as reply:
                if reply.status == 200:
                    return self
            if self.process.poll() is not None:
                break
            time.sleep(1)
        self.__exit__()
        raise RuntimeError(f"vLLM did not start: {self.log.read_text('utf-8', 'replace')[-2000:]}")

    def __exit__(self, *_):
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def generated(self) -> int:
        """How many replies it has finished since it started, whoever saw them."""
        with urllib.request.urlopen(f"{self.root}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return int(
            sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:request_success_total"))
        )
