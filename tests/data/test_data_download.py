"""Downloads against a real HTTP server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import socket
import threading

import numpy as np
import pytest
from data_test_files import DENSE, XML

from lightning_ubs.data import DataError, catalog, download
from lightning_ubs.data.commands import get_dataset
from lightning_ubs.data.entries import Entry
from lightning_ubs.data.sources import SourceFile


def pinned(name, content):
    return SourceFile("owner/repo", "c0ffee", f"data/{name}", len(content), hashlib.sha256(content).hexdigest())


FILES = {"small.arff": DENSE.encode(), "small.xml": XML.encode()}
SMALL = Entry("small", 3, 2, 3, 1.667, "tests", "nobody", files=tuple(pinned(*item) for item in FILES.items()))


class Server(http.server.ThreadingHTTPServer):
    mode = "whole"
    requests = 0


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests += 1
        content = FILES.get(self.path.removeprefix("/mirror/owner/repo/c0ffee/data/"))
        if content is None or self.server.mode == "gone":
            self.send_error(404)
            return
        body = {"whole": content, "other": content[::-1], "cut": content[: len(content) // 2]}[self.server.mode]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body if self.server.mode != "cut" else content)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    with Server(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        monkeypatch.setenv("LIGHTNING_UBS_MIRROR", f"http://127.0.0.1:{running.server_address[1]}/mirror")
        monkeypatch.setitem(catalog._BY_NAME, "small", SMALL)
        yield running
        running.shutdown()


def files_below(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_download_is_checked_kept_and_not_repeated(server, tmp_path):
    data = catalog.load("small", tmp_path)
    assert data.label_names == ["a", "b", "c d"]
    assert server.requests == 2
    assert files_below(tmp_path) == ["small.arff", "small.arff.cache.npz", "small.xml"]
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
    from dataclasses import replace

    monkeypatch.setitem(catalog._BY_NAME, "small", replace(SMALL, n=4))
    with pytest.raises(DataError, match="found 3 samples"):
        catalog.load("small", tmp_path)
