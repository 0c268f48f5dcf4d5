"""Downloads against a real HTTP server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_test_files import DENSE, DENSE_X, DENSE_Y, XML

from lightning_ubs._utils import files as _files
from lightning_ubs.data import DataError, MultiLabelData, MultiLabelDataModule, catalog, download
from lightning_ubs.data.commands import get_dataset
from lightning_ubs.data.entries import Entry, SourceFile
from lightning_ubs.data.readers.npz import write_npz


def pinned(name, content):
    return SourceFile("owner/repo", "c0ffee", f"data/{name}", len(content), hashlib.sha256(content).hexdigest())


FILES = {"small.arff": DENSE.encode(), "small.xml": XML.encode()}
SMALL = Entry("small", 3, 2, 3, 1.667, "tests", "nobody", files=tuple(pinned(*item) for item in FILES.items()))


class Server(http.server.ThreadingHTTPServer):
    mode = "whole"
    requests = 0
    daemon_threads = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.ended = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests += 1
        content = FILES.get(self.path.removeprefix("/mirror/owner/repo/c0ffee/data/"))
        if content is None or self.server.mode == "gone":
            self.send_error(404)
            return
        if self.server.mode.startswith("drip"):
            self.drip(content)
            return
        body = {"whole": content, "other": content[::-1], "cut": content[: len(content) // 2]}[self.server.mode]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body if self.server.mode != "cut" else content)))
        self.end_headers()
        self.wfile.write(body)

    def drip(self, content):
        """Send the headers at once or not, and then one byte at a time."""
        head = f"HTTP/1.0 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        if self.server.mode == "drip":
            self.wfile.write(head)
        for byte in content if self.server.mode == "drip" else head:
            try:
                self.wfile.write(bytes([byte]))
            except OSError:
                return
            if self.server.ended.wait(0.05):
                return

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    with Server(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("LIGHTNING_UBS_MIRROR", f"http://127.0.0.1:{running.server_address[1]}/mirror")
        monkeypatch.setitem(catalog._BY_NAME, "small", SMALL)
        yield running
        running.ended.set()
        running.shutdown()


def files_below(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_download_is_checked_kept_and_not_repeated(server, tmp_path):
    data = catalog.load("small", tmp_path)
    assert data.label_names == ["a", "b", "c d"]
    assert server.requests == 2
    assert files_below(tmp_path) == ["small.arff", "small.xml"]
    assert (tmp_path / "small" / "small.arff").read_bytes() == FILES["small.arff"]
    np.testing.assert_array_equal(catalog.load("small", tmp_path).X, data.X)
    assert server.requests == 2
    assert "3 samples, 2 features (dense), 3 labels" in get_dataset("small", tmp_path)


def test_mirror_may_be_a_template(server, tmp_path, monkeypatch):
    address = f"http://127.0.0.1:{server.server_address[1]}/mirror/owner/repo/c0ffee/{{path}}"
    monkeypatch.setenv("LIGHTNING_UBS_MIRROR", address)
    assert len(catalog.fetch("small", tmp_path)) == 2


def test_public_source_is_pinned_by_commit(monkeypatch):
    monkeypatch.delenv("LIGHTNING_UBS_MIRROR", raising=False)
    address = download.address(catalog.entry("yeast").files[0])
    assert address == (
        "https://raw.githubusercontent.com/tsoumakas/mulan/43f6389095ad71984264db4387a8074b22bc7d4a/"
        "data/multi-label/yeast/yeast.arff"
    )


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("other", "SHA-256 is not the published one"), ("cut", "could not be fetched"), ("gone", "404")],
)
def test_bad_download_is_one_clear_error_and_leaves_nothing(server, tmp_path, mode, reason):
    server.mode = mode
    with pytest.raises(DataError, match=reason) as caught:
        catalog.load("small", tmp_path)
    told = str(caught.value)
    assert "\n" not in told
    assert caught.value.__cause__ is None
    assert FILES.keys() & {word.strip("()") for word in told.split()} == {"small.arff"}
    assert SMALL.files[0].sha256 in told
    assert str(tmp_path / "small") in told
    assert files_below(tmp_path) == []
    server.mode = "whole"
    assert catalog.load("small", tmp_path).Y.shape == (3, 3)


@pytest.mark.parametrize("mode", ["drip", "drip the headers"])
@pytest.mark.parametrize(("limit", "value"), [("PATIENCE", 0.3), ("LEAST_PACE", 10**9)])
def test_a_server_that_drips_is_given_up_and_leaves_nothing(server, tmp_path, monkeypatch, mode, limit, value):
    server.mode = mode
    monkeypatch.setattr(download, limit, value)
    if limit == "LEAST_PACE":  # the whole takes too long, although each byte comes in time
        monkeypatch.setattr(download, "PATIENCE", 0.5)
        monkeypatch.setattr(download, "PIECE", 1)
    start = time.monotonic()
    with pytest.raises(DataError, match=r"the server is too slow.*put small\.arff .* by hand") as caught:
        catalog.load("small", tmp_path)
    assert time.monotonic() - start < 3
    assert "\n" not in str(caught.value)
    assert files_below(tmp_path) == []


def test_a_server_that_sends_without_end_is_stopped_at_the_published_size(server, tmp_path, monkeypatch):
    short = replace(SMALL, files=(replace(SMALL.files[0], bytes=20), SMALL.files[1]))
    monkeypatch.setitem(catalog._BY_NAME, "small", short)
    with pytest.raises(DataError, match="longer than the 20 bytes"):
        catalog.load("small", tmp_path)
    assert files_below(tmp_path) == []


def test_a_published_file_is_hashed_once_per_process(server, tmp_path, monkeypatch):
    hashed = []
    original = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda stream, kind: hashed.append(stream.name) or original(stream, kind)
    )
    catalog.load("small", tmp_path)
    assert hashed == [], "the download has hashed it"
    _files._digests.clear()
    time.sleep(2 * _files._CLOCK_STEP)
    get_dataset("small", tmp_path)
    module = MultiLabelDataModule("small", data_dir=tmp_path, folds=2)
    module.prepare_data()
    catalog.load("small", tmp_path)
    assert sorted(Path(name).name for name in hashed) == sorted(FILES)


def test_an_unpinned_file_is_used_only_where_the_pinned_are_absent_and_a_warning_says_so(server, tmp_path, caplog):
    poisoned = MultiLabelData(DENSE_X + 1, DENSE_Y, ["a", "b", "c d"], ["x", "y z"])
    write_npz(tmp_path / "small.npz", poisoned)
    np.testing.assert_array_equal(catalog.load("small", tmp_path).X, DENSE_X + 1)
    assert f"small is read from {tmp_path / 'small.npz'}, which is not a published file" in caplog.text
    assert server.requests == 0
    (tmp_path / "small").mkdir()
    for name, content in FILES.items():
        (tmp_path / "small" / name).write_bytes(content)
    np.testing.assert_array_equal(catalog.load("small", tmp_path).X, DENSE_X)
    np.testing.assert_array_equal(catalog.load("small", tmp_path).X, DENSE_X)


def test_files_in_a_shared_folder_can_be_read_by_others(server, tmp_path):
    before = os.umask(0o022)
    try:
        catalog.load("small", tmp_path)
    finally:
        os.umask(before)
    assert {(tmp_path / "small" / name).stat().st_mode & 0o777 for name in FILES} == {0o644}


def test_without_network_the_way_by_hand_is_told(server, tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("LIGHTNING_UBS_MIRROR", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(DataError, match=r"no connection.*put small\.arff .*SHA-256.* into .*small by hand"):
            catalog.load("small", tmp_path)
    assert files_below(tmp_path) == []
    (tmp_path / "small").mkdir(exist_ok=True)
    for name, content in FILES.items():
        (tmp_path / "small" / name).write_bytes(content)
    assert catalog.load("small", tmp_path).X.shape == (3, 2)
    assert server.requests == 0


def test_download_can_be_switched_off(server, tmp_path):
    with pytest.raises(DataError, match=r"switched off; put small\.arff"):
        catalog.load("small", tmp_path, download=False)
    assert server.requests == 0
    assert not (tmp_path / "small").exists()


def test_wrong_counts_after_a_right_download_are_refused(server, tmp_path, monkeypatch):
    monkeypatch.setitem(catalog._BY_NAME, "small", replace(SMALL, n=4))
    with pytest.raises(DataError, match="found 3 samples"):
        catalog.load("small", tmp_path)
