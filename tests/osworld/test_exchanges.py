import hashlib
import json

from osworld_rollouts.osworld.exchanges import Exchange, command_text, redact_text, request_text


def exchange(request="{}") -> Exchange:
    return Exchange("setup", 1, "POST", "/setup/execute", request, "", 0, 0.0)


def test_an_answer_is_kept_short_with_the_hash_of_the_whole():
    made = exchange()
    body = json.dumps({"output": "x" * 10_000, "returncode": 3}).encode()
    made.answer(200, "application/json", body)
    assert made.returncode == 3
    assert len(made.reply) < 3000
    assert made.reply_sha256 == hashlib.sha256(body).hexdigest()
    assert made.reply_bytes == len(body)


def test_binary_is_not_kept():
    made = exchange()
    made.answer(200, "image/png", b"\x89PNG....")
    assert made.reply == ""
    assert made.reply_bytes == 8


def test_zero_is_a_fact_and_stays_in_the_record():
    made = exchange()
    made.seq = 0
    made.answer(200, "application/json", b'{"returncode": 0}')
    record = made.as_dict()
    assert record["seq"] == 0
    assert record["returncode"] == 0
    assert "note" not in record
    json.dumps(record)


def test_true_is_no_return_code():
    made = exchange()
    made.answer(200, "application/json", b'{"returncode": true}')
    assert made.returncode is None


def test_the_output_of_a_failed_command_is_both_streams_or_the_message():
    made = exchange()
    made.answer(200, "application/json", b'{"output": "one\\n", "error": "two\\n", "returncode": 1}')
    assert made.output == "one\ntwo"
    made.answer(500, "application/json", b'{"message": "no binary", "error": {"type": "t", "message": "m"}}')
    assert made.output == "no binary"
    assert made.error_type == "t"


def test_an_upload_is_recorded_by_where_it_goes():
    body = b'--b\r\nContent-Disposition: form-data; name="file_path"\r\n\r\n/home/user/a.xlsx\r\n--b\r\n' + b"x" * 5000
    assert request_text("multipart/form-data; boundary=b", body) == f"upload of {len(body)} bytes to /home/user/a.xlsx"


def test_commands_read_as_a_person_writes_them():
    assert command_text(exchange('{"command": ["ls", "-l"], "shell": false}')) == "ls -l"
    assert command_text(exchange('{"command": "ls -l", "shell": true}')) == "ls -l"
    assert command_text(exchange("no json")) == "no json"


def test_secrets_are_redacted():
    assert "hunter2" not in redact_text("echo hunter2 | sudo -S apt-get update")
    assert "abcdefgh1234" not in redact_text("Authorization: Bearer abcdefgh1234")
    assert "echo hello" in redact_text("echo hello > file")
