"""Each attack on the review page is tried for real, over TCP."""

import http.client
import os
import shutil
import socket

import httpx
import pytest
from support.review_library import make_library

from photodup.photos.review.serve import ReviewServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ReviewServer(make_library(tmp_path_factory.mktemp("secure") / "library")) as running:
        yield running


def request(server, method="GET", path="", host=None, headers=None, body=None):
    """One raw request, with a Host header of our choosing."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    token = server.url.rstrip("/").rsplit("/", 1)[1]
    connection.putrequest(method, path if path.startswith("/") else f"/{token}/{path}", skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.port}")
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(body or b"")))
    connection.endheaders(body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, answer.headers


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "[::1]:{port}", ""]
)
def test_dns_rebinding_is_refused(server, host):
    status, content, _ = request(server, host=host.format(port=server.port) or " ")
    assert status in (400, 421) and b"groups" not in content
    assert request(server)[0] == request(server, host=f"localhost:{server.port}")[0] == 200


def test_a_rebound_page_reads_neither_this_page_nor_a_service_with_a_key(server, browser, small_service):
    service = small_service(API_KEY="a-key-of-this-test")
    with browser.new_page() as page:
        for url, status in ((server.url, 421), (f"{service.url}/info", 401), (f"{service.url}/docs", 401)):
            answer = page.goto(url.replace("127.0.0.1", "rebound.example"))
            assert answer.status == status and "ViT" not in answer.text() and "group" not in answer.text()


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", "//", "/static/style.css", "/photo/1/small.jpg", "/work/state", "/%00/"]
)
def test_nothing_without_the_token(server, path):
    assert request(server, path=path)[0] == 403


@pytest.mark.parametrize("line", ["OPTIONS *", "GET *", "HEAD /", "TRACE /", "GET http://evil.example/"])
def test_odd_request_lines_are_refused(server, line):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        raw.sendall(f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ")[1] in (b"400", b"403") and b"default-src 'none'" in answer


def test_a_token_is_long_and_new_each_time(server):
    token = server.url.rstrip("/").rsplit("/", 1)[1]
    assert len(token) >= 32
    with ReviewServer(server.session.root) as other:
        assert token not in other.url


@pytest.mark.parametrize("headers", [
    {},
    {"Origin": "null"},
    {"Origin": "http://evil.example"},
    {"Origin": "https://127.0.0.1:{port}"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://127.0.0.1:{port}.evil.example"},
    {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"},
])  # fmt: skip
@pytest.mark.parametrize("path", [
    "remove", "accept-all", "undo", "restore", "empty-trash", "settings/backend", "settings/keep", "scan",
    "similar", "threshold", "open", "work/stop",
])  # fmt: skip
def test_forms_of_other_sites_are_refused(server, headers, path):
    given = {name: value.format(port=server.port) for name, value in headers.items()}
    assert request(server, "POST", path, headers=given)[0] == 403
    assert not any(item.status != "todo" for item in server.session.items.values())
    assert not (server.session.own.path / "settings.json").exists()
    assert server.folder.work.last is None, "no work was begun"


def test_what_the_owner_typed_is_escaped_too(library):
    from photodup.photos.embed.choose import EncoderRequest
    from photodup.photos.library.settings import LibrarySettings

    with ReviewServer(library) as server:
        hostile = 'http://127.0.0.1:9/"><script>alert(1)</script>'
        server.session.change(LibrarySettings(folders=("</textarea><b>x",)))
        server.folder.encoder = EncoderRequest("fastapi-pytorch-fp32-http-jpeg", hostile)
        text = httpx.get(server.url + "settings", timeout=30).text
        assert "<script>alert" not in text and "</textarea><b>" not in text
        assert "&lt;script&gt;alert(1)" in text and "&lt;/textarea&gt;" in text


def test_pages_forbid_scripts_frames_and_sniffing(server):
    _, content, headers = request(server)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http:" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"<script>" not in content and b" style=" not in content and b"onclick" not in content
    for path in ("/", "photo/1/small.jpg", "static/review.js"):
        assert request(server, path=path)[2]["Content-Security-Policy"] == policy


@pytest.mark.parametrize("path", [
    "photo/../../../etc/passwd", "photo/..%2f..%2fetc%2fpasswd/small.jpg", "photo/1/..%2f..%2fsmall.jpg",
    "photo/1/huge.jpg", "photo/-1/small.jpg", "photo/999999/small.jpg", "photo/etc/small.jpg",
    "removed/../../etc/passwd/small.jpg", "removed/20200101-000000-00000000/small.jpg",
    "static/..%2fapp.py", "static/../app.py", "static/%2e%2e/app.py", "docs", "openapi.json", "redoc",
])  # fmt: skip
def test_files_are_served_by_catalogue_number_only(server, path):
    status, content, _ = request(server, path=path)
    assert status in (403, 404, 409, 422)
    assert b"root:" not in content and b"create_app" not in content


def test_a_huge_body_is_refused(server):
    origin = {"Origin": f"http://127.0.0.1:{server.port}"}
    path = server.url.split(str(server.port))[1] + "restore"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, b"x", origin | {"Content-Length": "999999999"})
    assert connection.getresponse().status == 413
    connection.close()
    answer = httpx.post(server.url + "restore", headers=origin, content=iter([b"x" * 100_000] * 20))
    assert answer.status_code == 413, "a body without a length is not read at all"


def test_it_listens_on_this_machine_only(server):
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1"}:
        if address.startswith("127."):
            continue
        with pytest.raises(OSError), socket.create_connection((address, server.port), timeout=2):
            pass
    assert server._socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("fault", ["changed", "symlink", "folder symlink", "gone", "pipe"])
def test_a_file_that_is_no_longer_the_scanned_one_is_refused(library, tmp_path, fault):
    secret = tmp_path / "secret.jpg"
    with ReviewServer(library) as server:
        photo = next(
            p for i in server.session.items.values() for p in i.photos if p.path.name == "small coffee.jpg"
        )
        address, path = f"{server.url}photo/{photo.id}/small.jpg", library / photo.path
        assert httpx.get(address).status_code == 200, "cached from here on"
        shutil.copy2(path, secret)
        if fault == "changed":
            path.write_bytes(path.read_bytes() + b"x")
        elif fault == "symlink":
            path.unlink()
            path.symlink_to(secret)
        elif fault == "folder symlink":
            path.parent.rename(tmp_path / "moved")
            path.parent.symlink_to(tmp_path / "moved")
        elif fault == "gone":
            path.unlink()
        elif fault == "pipe":
            path.unlink()
            os.mkfifo(path)
        answer = httpx.get(address, timeout=60)
        assert answer.status_code == 404 and "scan again" in answer.text, fault
        said = {"symlink": "a link", "folder symlink": "a link", "gone": "no longer there"}
        assert said.get(fault, "") in answer.text, fault
        assert answer.headers["content-type"].startswith("text/html")


def test_a_frame_is_allowed_to_this_machine_when_asked(server):
    with ReviewServer(server.session.root, in_frame=True) as framed:
        policy = httpx.get(framed.url).headers["Content-Security-Policy"]
        assert "frame-ancestors http://127.0.0.1:* http://localhost:*" in policy
