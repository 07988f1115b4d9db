"""An OSWorld server as one finds it: what `desktop_env/server/main.py` does, written from its behaviour, for tests inside a real desktop.

Runs there as `python3 stock_server.py SETTINGS`. It knows no operation headers, no token, no ledger and no health. Commands are
run exactly as OSWorld does: `subprocess.run(..., text=True, timeout=120)`, so output that is not UTF-8 is a 500 after the effect, a daemon
that keeps a pipe is waited for, and a command that takes too long is killed alone. What needs X (screenshots, windows, opening files) it asks
of our own guest server, whose answers have OSWorld's form; it cuts every operation header, so that nothing of our ledger helps.
It does not imitate OSWorld's slowness or Flask's error pages. Every effect it receives is written to `effects.log`, one line each.
"""

# ruff: noqa: BLE001, PLW1510, PTH111, PTH123, UP022 - OSWorld's own lines, as far as they are known

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import socketserver
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler

SETTINGS = json.loads(sys.argv[1])
"""`upstream`, `token`: our guest server; `socket`, `port`: where to listen; `timeout`: of commands, in seconds; `log`."""


class Upstream(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(SETTINGS["upstream"])


def command_of(data):
    shell = data.get("shell", False)
    command = data.get("command", "" if shell else [])
    if isinstance(command, str) and not shell:
        command = shlex.split(command)
    if isinstance(command, list):
        command = [os.path.expanduser(word) if word.startswith("~/") else word for word in command]
    return command, shell


def execute(data):
    command, shell = command_of(data)
    try:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            shell=shell,
            text=True,
            timeout=SETTINGS["timeout"],
        )
    except Exception as error:
        return 500, {"status": "error", "message": str(error)}
    return 200, {
        "status": "success",
        "output": result.stdout,
        "error": result.stderr,
        "returncode": result.returncode,
    }


def launch(data):
    command, shell = command_of(data)
    try:
        subprocess.Popen(command, shell=shell)
    except Exception as error:
        return 500, {"status": "error", "message": str(error)}
    return 200, f"{command if shell else ' '.join(command)} launched successfully"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.forward(b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path not in {"/file", "/screen_size"}:
            with open(SETTINGS["log"], "a") as file:
                file.write(f"{self.path}\n")
        if self.path in {"/execute", "/setup/execute"}:
            self.answer(*execute(json.loads(body)))
        elif self.path == "/setup/launch":
            self.answer(*launch(json.loads(body)))
        else:
            self.forward(body)

    def forward(self, body):
        if self.path in {"/health", "/operations"} or self.path.startswith("/operations/"):
            self.answer(404, "Not Found")
            return
        far = Upstream("guest", timeout=1800)
        headers = {"Authorization": f"Bearer {SETTINGS['token']}"}
        if self.headers.get("Content-Type"):
            headers["Content-Type"] = self.headers["Content-Type"]
        far.request(self.command, self.path, body, headers)
        reply = far.getresponse()
        self.send(reply.status, reply.headers.get("Content-Type", ""), reply.read())
        far.close()

    def answer(self, status, value):
        text = isinstance(value, str)
        self.send(
            status,
            "text/html" if text else "application/json",
            value.encode() if text else json.dumps(value).encode(),
        )

    def send(self, status, content_type, body):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "-"

    def log_message(self, *_):
        pass


class Tcp(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


class Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    threading.Thread(target=Tcp(("127.0.0.1", SETTINGS["port"]), Handler).serve_forever, daemon=True).start()
    Unix(SETTINGS["socket"], Handler).serve_forever()
