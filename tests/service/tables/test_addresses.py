"""Tables behind an address: a store that speaks S3, as far as pyarrow asks for it, on a port of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[3]
LIST = (
    '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<IsTruncated>false</IsTruncated><KeyCount>{}</KeyCount>{}</ListBucketResult>"
)
ENTRY = "<Contents><Key>{}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>{}</Size></Contents>"


def unchunked(stream: Any) -> bytes:
    content = b""
    while size := int(stream.readline().split(b";")[0], 16):
        content += stream.read(size)
        stream.readline()
    while stream.readline().strip():
        pass
    return content


class Store(BaseHTTPRequestHandler):
    """Buckets are folders: lists of a bucket, and objects or ranges of them."""

    protocol_version = "HTTP/1.1"
    root: Path

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = self.root / unquote(url.path).lstrip("/")
        asked = dict(parse_qsl(url.query))
        status, headers, content = 200, {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}, b""
        if "list-type" in asked:
            names = [str(each.relative_to(path)) for each in sorted(path.rglob("*")) if each.is_file()]
            found = [name for name in names if name.startswith(asked["prefix"])]
            entries = "".join(ENTRY.format(name, (path / name).stat().st_size) for name in found)
            content = LIST.format(len(found), entries).encode()
        elif path.is_file():
            content = path.read_bytes()
            if wanted := self.headers.get("Range"):
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
                status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{len(content)}"
                content = content[first : last + 1]
        elif path.parent != self.root:
            status = 404
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_PUT(self) -> None:
        """An object, a part of an object, or a folder."""
        url = urlsplit(self.path)
        path, asked = self.root / unquote(url.path).lstrip("/"), dict(parse_qsl(url.query))
        content = self._body()
        if url.path.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            Path(f"{path}{asked.get('partNumber', '')}").write_bytes(content)
        self._answered(b"", {"ETag": '"1"'})

    def do_POST(self) -> None:
        """The begin and the end of an upload in parts."""
        url = urlsplit(self.path)
        path, asked = self.root / unquote(url.path).lstrip("/"), dict(parse_qsl(url.query, keep_blank_values=True))
        self._body()
        if "uploads" in asked:
            self._answered(b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>", {})
            return
        parts = sorted(path.parent.glob(f"{path.name}?"))
        path.write_bytes(b"".join(part.read_bytes() for part in parts))
        for part in parts:
            part.unlink()
        self._answered(b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>", {})

    def _body(self) -> bytes:
        """The body without its chunks, which there may be two kinds of, one inside the other."""
        stream: Any = self.rfile
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            stream = BytesIO(unchunked(stream))
        elif "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return bytes(stream.read(int(self.headers.get("Content-Length", 0))))
        return unchunked(stream)

    def _answered(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def options(tmp_path: Path) -> Iterator[str]:
    """How the store is reached, after the question mark of an address."""
    folder = tmp_path / "bucket" / "data"
    folder.mkdir(parents=True)
    for i in range(2):
        pq.write_table(pa.table({"x": np.arange(5.0) + 10 * i}), folder / f"{i}.parquet")
    (folder / "notes.txt").write_text("not a table")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Store,), {"root": tmp_path}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"scheme=http&region=eu-west-1&endpoint_override=127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def tables(address: str, out: Path | str) -> Any:
    known = {"AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": "password", "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-m", "service.tables", "--input", address, "--column", "x", "--out", str(out)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **known}, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize(("what", "median"), [("/*.parquet", 7.0), ("", 7.0), ("/1.parquet", 12.0)])
def test_tables_in_a_bucket(what: str, median: float, options: str, tmp_path: Path) -> None:
    done = tables(f"s3://bucket/data{what}?{options}", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "o")["median"].to_pylist() == [median]


def test_the_output_is_remote(options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for said in ("1 rows written to s3://", "all answers are there already"):
        done = tables(f"s3://bucket/data?{options}", f"s3://bucket/answers/new?{options}")
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    found = [path for path in tmp_path.rglob("*") if path.is_file() and "data" not in path.parts]
    assert found == [tmp_path / "bucket" / "answers" / "new" / "part-00000.parquet"]
    assert pq.read_table(found[0])["median"].to_pylist() == [7.0]


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "t.parquet")
    done = tables(str(tmp_path / "t.parquet"), "nonsense://bucket/answers")
    assert done.returncode == 2
    assert done.stderr.startswith("error: nonsense://bucket/answers: pyarrow has no file system for it")
    assert not (ROOT / "nonsense:").exists()


@pytest.mark.slow
def test_what_is_not_there_is_named(options: str, tmp_path: Path) -> None:
    for address in (f"s3://bucket/data/2.parquet?{options}", f"s3://bucket/none*?{options}", "nonsense://x.parquet"):
        done = tables(address, tmp_path / "o")
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {address}: ")
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()


def test_a_password_does_not_get_into_the_plan(tmp_path: Path) -> None:
    done = tables("s3://name:password@bucket/x.parquet", tmp_path / "o")
    assert done.returncode == 2
    assert "AWS_ACCESS_KEY_ID" in done.stderr
    assert "password@" not in done.stderr
