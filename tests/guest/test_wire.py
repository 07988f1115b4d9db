"""Bodies: multipart in any cut, chunked, cut short."""

from __future__ import annotations

import io

import pytest

from osworld_rollouts.guest.wire import ApiError, BodyReader, MultipartReader, Request, move_into_place

BOUNDARY = "x-y-z"
CONTENT = b"\r\n--x-y-" + b"\x00\xff" * 50 + b"\r\n--x-y-w\r\n"


def multipart(content=CONTENT):
    return (
        b'--x-y-z\r\nContent-Disposition: form-data; name="file_path"\r\n\r\n/home/user/a b.txt\r\n'
        b'--x-y-z\r\nContent-Disposition: form-data; name="file_data"; filename="a \\"b\\".txt"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--x-y-z--\r\n"
    )


class Dribble(io.BytesIO):
    """Gives at most `step` bytes for one read."""

    def __init__(self, data, step):
        super().__init__(data)
        self.step = step

    def read(self, size=-1):
        return super().read(min(size, self.step) if size >= 0 else self.step)


def request(data, tmp_path, step=10**6, **headers):
    made = Request("POST", "/setup/upload", {"Content-Length": str(len(data)), **headers})
    made.read_body(Dribble(data, step), tmp_path)
    return made


@pytest.mark.parametrize("step", [1, 2, 3, 7, 9, 64, 10**6])
@pytest.mark.parametrize("content", [CONTENT, b"", b"\r\n", b"--x-y-z", b"a" * 5000])
def test_multipart_survives_every_cut(tmp_path, step, content):
    made = request(multipart(content), tmp_path, step, **{"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})
    assert made.form == {"file_path": "/home/user/a b.txt"}
    upload = made.files["file_data"]
    assert upload.path.read_bytes() == content
    assert upload.size == len(content)
    assert upload.filename == 'a "b".txt'
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_chunked(tmp_path):
    body = b'5;ext=1\r\n{"a":\r\n3\r\n 1}\r\n0\r\nTrailer: x\r\n\r\n'
    made = Request("POST", "/execute", {"Transfer-Encoding": "chunked"})
    made.read_body(io.BytesIO(body), tmp_path)
    assert made.json_object() == {"a": 1}


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b'{"a": 1', {"Content-Length": "20"}),
        (b"zz\r\n", {"Transfer-Encoding": "chunked"}),
        (b"", {"Content-Length": "-5"}),
        (
            b'--x-y-z\r\nContent-Disposition: form-data; name="a"\r\n\r\n',
            {"Content-Type": "multipart/form-data; boundary=x-y-z"},
        ),
        (b"--x", {"Content-Type": "multipart/form-data"}),
    ],
)
def test_broken_bodies_are_refused(tmp_path, data, headers):
    made = Request("POST", "/x", {"Content-Length": str(len(data)), **headers})
    with pytest.raises(ApiError) as refused:
        made.read_body(io.BytesIO(data), tmp_path)
    assert refused.value.status == 400


def test_json_must_be_an_object(tmp_path):
    with pytest.raises(ApiError):
        request(b"[1]", tmp_path).json_object()
    with pytest.raises(ApiError):
        request(b"{", tmp_path).json_object()


def test_unknown_length_of_a_large_file(tmp_path):
    reader = BodyReader(
        io.BytesIO(multipart(b"b" * 3_000_000)), {"Content-Length": str(len(multipart(b"b" * 3_000_000)))}
    )
    form, files = {}, {}
    MultipartReader(reader, f'multipart/form-data; boundary="{BOUNDARY}"', tmp_path).read(form, files)
    assert files["file_data"].size == 3_000_000


def test_replaced_file_keeps_its_mode_and_links_are_followed(tmp_path):
    source, target, link = tmp_path / "s", tmp_path / "d" / "t.sh", tmp_path / "link"
    source.write_bytes(b"new")
    target.parent.mkdir()
    target.write_bytes(b"old")
    target.chmod(0o755)
    link.symlink_to(target)
    move_into_place(source, link)
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o755
    assert link.is_symlink()
    with pytest.raises(ApiError):
        move_into_place(source, target.parent)
