# Source that travels with every effect on an unmodified OSWorld guest and runs there as `python3 -I -c`: Python 3.8, Linux,
# standard library only. It keeps the operation ledger in the guest's own file system, by the rules of `guest/ledger.py`.
#
# Arguments: the question as JSON, then the effect's words. It prints one line of ASCII JSON and exits 0, whatever the effect did, so
# that OSWorld's server can neither stumble over bytes that are not UTF-8 nor wait for a daemon that holds a pipe.
#
# ruff: noqa: ANN001, ANN003, ANN201, ANN204, D101, D102, D103, PLC0415, PTH103, PTH105, PTH108, PTH111, PTH118, PTH120, PTH123
# ruff: noqa: PTH204, PTH208, T201
# pyright: basic
import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time

MAX_OUTPUT = 32 * 2**20  # bytes kept of each stream, as our own guest server keeps
INLINE = 16384  # bytes of a text that are sent as they are; longer ones are compressed


class Refused(Exception):
    def __init__(self, status, kind, message, **extra):
        super().__init__(message)
        self.value = dict(extra, state="refused", status=status, kind=kind, message=message)


def sync_folder(folder):
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path, data):
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(os.path.dirname(path))


def read(path, default=""):
    try:
        with open(path) as file:
            return file.read().strip()
    except FileNotFoundError:
        return default


class Ledger:
    """Entries `ops/<hash of the id>.<seq>.json` and `.result`; `fence`, `lock`; `../current` names the lease that holds the machine.

    Whoever performs an effect holds a lock on its entry until the result is written. So an entry without a result and without a lock
    was cut short, whatever process ids were reused and whatever reboots happened since.
    """

    def __init__(self, ask):
        self.root = os.path.expanduser(ask["root"])
        self.lease = ask["lease"]
        self.folder = os.path.join(self.root, self.lease)
        self.ops = os.path.join(self.folder, "ops")

    @contextlib.contextmanager
    def locked(self, how):
        try:
            handle = os.open(os.path.join(self.folder, "lock"), os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise self.gone() from error
        try:
            fcntl.flock(handle, how)
            if read(os.path.join(self.root, "current")) != self.lease:
                raise self.gone()
            yield
        finally:
            os.close(handle)

    def gone(self):
        holder = read(os.path.join(self.root, "current"))
        text = "another lease holds this machine" if holder else "the machine was reset, or its lease ended"
        return Refused(409, "stale_fence", "the ledger of this lease is not in force: " + text, ledger_gone=True)

    def open(self, replaces):
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        holder = read(os.path.join(self.root, "current"))
        if holder not in ("", self.lease, replaces):
            raise Refused(409, "machine_leased", f"lease {holder} holds this machine, by another host's hand")
        os.makedirs(self.ops, mode=0o700, exist_ok=True)
        write(os.path.join(self.root, "current"), self.lease.encode())

    def close(self):
        if read(os.path.join(self.root, "current")) == self.lease:
            os.unlink(os.path.join(self.root, "current"))

    def entries(self):
        """(hash, seq, path) of every entry."""
        for name in os.listdir(self.ops):
            parts = name.split(".")
            if len(parts) == 3 and parts[2] == "json":
                yield parts[0], int(parts[1]), os.path.join(self.ops, name)

    def find(self, operation_id):
        key = name_of(operation_id)
        return next((path for found, _, path in self.entries() if found == key), None)

    def last_seq(self):
        return max((seq for _, seq, _ in self.entries()), default=-1)

    def fence(self):
        return int(read(os.path.join(self.folder, "fence"), "0"))

    def admit(self, ask):
        """The locked descriptor of a new entry, or None when the operation is known."""
        with self.locked(fcntl.LOCK_EX):
            fence = self.fence()
            if ask["fence"] < fence:
                text = f"fence {ask['fence']} is older than the lease's fence {fence}"
                raise Refused(409, "stale_fence", text, fence=fence)
            try:
                if ask["fence"] > fence:
                    write(os.path.join(self.folder, "fence"), str(ask["fence"]).encode())
                known = self.find(ask["id"])
                if known is not None:
                    entry = load(known)
                    if entry and (entry["request"], entry["digest"]) != (ask["request"], ask["digest"]):
                        text = f"operation {ask['id']} was recorded for another request ({entry['request']})"
                        raise Refused(409, "operation_mismatch", text + "; a new effect needs a new operation id")
                    return None
                last = self.last_seq()
                if ask["seq"] <= last:
                    text = f"operation {ask['id']} has sequence {ask['seq']}, but {last} was already recorded"
                    raise Refused(409, "stale_sequence", text, last_seq=last)
                return self.create(ask)
            except OSError as error:
                text = f"operation {ask['id']} was not performed: its entry failed: {error}"
                raise Refused(507, "ledger_unavailable", text) from error

    def path(self, ask):
        return os.path.join(self.ops, f"{name_of(ask['id'])}.{ask['seq']}.json")

    def create(self, ask):
        entry = {"operation_id": ask["id"], "started_at": time.time()}
        entry.update({key: ask[key] for key in ("seq", "fence", "request", "digest")})
        path = self.path(ask)
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(handle, json.dumps(entry).encode())
            os.fsync(handle)
            sync_folder(self.ops)
        except OSError:
            os.unlink(path)
            raise
        return handle

    def answer(self, operation_id):
        """What is known of an operation now."""
        with self.locked(fcntl.LOCK_SH):
            path = self.find(operation_id)
            if path is None:
                return {"state": "absent", "operation_id": operation_id}
            found = load(path) or {"started_at": os.path.getmtime(path), "seq": -1, "fence": 0}
            found["operation_id"] = operation_id
            alive = held(path)
            try:
                with open(path[:-5] + ".result", "rb") as file:
                    head, body = file.read().split(b"\n", 1)
            except FileNotFoundError:
                found["state"] = "running" if alive else "interrupted"
                return found
        found.update(json.loads(head), state="finished")
        found.update(packed(body))
        return found

    def wait(self, operation_id, seconds):
        """The same once it is no longer running, or after `seconds`."""
        until = time.monotonic() + seconds
        while True:
            found = self.answer(operation_id)
            if found["state"] != "running" or time.monotonic() >= until:
                return found
            time.sleep(0.05)


def packed(body):
    if len(body) <= INLINE:
        with contextlib.suppress(UnicodeDecodeError):
            return {"body": body.decode()}
    import base64
    import zlib

    return {"packed_body": base64.b64encode(zlib.compress(body, 1)).decode()}


def name_of(operation_id):
    return hashlib.sha256(operation_id.encode()).hexdigest()[:40]


def load(path):
    """The entry; None when a crash between create and sync left it torn: it was begun, and its name stays taken."""
    try:
        with open(path) as file:
            return json.load(file)
    except ValueError:
        return None


def held(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


# --- effects: (HTTP status, content type, body), as the server itself would have answered ---


def as_json(value, status=200):
    return status, "application/json", json.dumps(value).encode()


def problem(kind, message, **extra):
    error = {"type": kind, "message": message}
    return as_json(dict(extra, status="error", message=message, error=error), 500)


def command(ask, words, stem):
    """Run a command in a session of its own, its output in files, and wait for its own end only."""
    words = [words[0][1:], *words[1:]] if ask["shell"] else words
    outputs = [stem + ".out", stem + ".err"]
    with open(outputs[0], "ab") as out, open(outputs[1], "ab") as err:
        try:
            process = subprocess.Popen(
                words, shell=ask["shell"], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except (OSError, ValueError, IndexError) as error:
            return as_json({"status": "error", "message": str(error)}, 500)
    late = False
    try:
        process.wait(ask["timeout"])
    except subprocess.TimeoutExpired:
        late = True
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    out, err = (text_of(path) for path in outputs)
    if late:
        message = f"the command ran longer than {ask['timeout']:g} s and was killed with its process group"
        return problem("command_timeout", message, output=out, stderr=err, returncode=process.returncode)
    return as_json({"status": "success", "output": out, "error": err, "returncode": process.returncode})


def text_of(path):
    with open(path, "rb") as file:
        data = file.read(MAX_OUTPUT)
        if file.read(1):
            data += b"\n[the rest of this output was dropped]\n"
    os.unlink(path)
    return data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")


def post(ask, words):
    """Ask the guest's own server, from inside, for what only it can do."""
    import base64
    import urllib.error
    import urllib.request
    import zlib

    url = f"http://127.0.0.1:{ask['port']}{ask['path']}"
    body = zlib.decompress(base64.b64decode("".join(words)))
    request = urllib.request.Request(url, body, {"Content-Type": ask["content_type"]}, method="POST")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=ask["timeout"]
        ) as reply:
            return reply.status, reply.headers.get("Content-Type", ""), reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Content-Type", ""), error.read()
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ConnectionRefusedError):
            return problem("server_unreachable", f"the guest's server does not listen on port {ask['port']}")
        if isinstance(reason, TimeoutError) or "timed out" in str(reason):
            return problem("command_timeout", f"{ask['path']} did not answer within {ask['timeout']:g} s")
        raise


def supervise(ask, words, path):
    """Perform the effect and record its result; a process of its own, so that the server's time limit cannot cut it short."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    stem = path[:-5]
    status, content_type, body = command(ask, words, stem) if ask["do"] == "run" else post(ask, words)
    head = {"status": status, "content_type": content_type, "finished_at": time.time()}
    write(stem + ".result", json.dumps(head).encode() + b"\n" + body)


def perform(ledger, ask, words):
    entry = ledger.admit(ask)
    if entry is None:
        return dict(ledger.wait(ask["id"], ask["wait"]), replayed=True)
    over, alive = os.pipe()
    if os.fork() == 0:
        # The copy ends here whatever happens: without a result the entry is interrupted, which is then the truth.
        try:
            os.close(over)
            supervise(ask, words, ledger.path(ask))
        finally:
            os._exit(0)
    os.close(alive)
    os.close(entry)
    select.select([over], [], [], ask["wait"])
    return dict(ledger.answer(ask["id"]), replayed=False)


def facts(ask):
    """What a host wants to know of a machine it attaches to."""
    import platform
    import socket

    try:
        socket.create_connection(("127.0.0.1", ask["port"]), 3).close()
        serves = True
    except OSError:
        serves = False
    packages = ""
    with contextlib.suppress(OSError), open("/var/lib/dpkg/status", "rb") as file:
        packages = hashlib.sha256(file.read()).hexdigest()
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "release": read("/etc/os-release"),
        "packages": packages,
        "serves": serves,
    }


def main(ask, words):
    ledger = Ledger(ask)
    try:
        if ask["do"] in ("run", "post"):
            return perform(ledger, ask, words)
        if ask["do"] == "ask":
            return ledger.wait(ask["id"], ask["wait"])
        if ask["do"] == "open":
            ledger.open(ask["replaces"])
            return dict(facts(ask), state="open")
        if ask["do"] == "close":
            ledger.close()
            return {"state": "closed"}
        with ledger.locked(fcntl.LOCK_SH):
            return {"state": "open", "fence": ledger.fence(), "last_seq": ledger.last_seq()}
    except Refused as refused:
        return refused.value
    except OSError as error:
        return Refused(507, "ledger_unavailable", f"the ledger cannot be used: {error}").value


print(json.dumps(main(json.loads(sys.argv[1]), sys.argv[2:])), flush=True)
