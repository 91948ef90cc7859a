"""The HTTP listener of `brokerd serve`, as curl, Prometheus and a browser meet it."""

import http.client
import json
import signal
import socket
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from tests.acceptance.serving import Place, free_port


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "here")


def ask(place: Place, path: str) -> tuple[int, str]:
    """Ask at the Unix socket."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(place.data_dir / "http.sock"))
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


@pytest.mark.rule("MON-23", "MON-30", "MON-31")
def test_a_daemon_answers_at_its_socket_without_any_setting(place: Place) -> None:
    with place.serving() as process:
        assert ask(place, "/livez") == (200, "alive\n")
        assert ask(place, "/readyz") == (200, "ready\n")
        status, text = ask(place, "/metrics")
        assert status == 200
        assert "brokerd_ready 1.0" in text
        assert ask(place, "/")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not (place.data_dir / "http.sock").exists()


@pytest.mark.rule("MON-28")
def test_the_page_opens_at_the_address_that_the_command_prints(place: Place) -> None:
    port = free_port()
    with place.settings.open("a") as file:
        file.write(f'[http]\nlisten = "TCP://127.0.0.1:{port}"\n')
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    with place.serving():
        assert browser.open(f"http://127.0.0.1:{port}/livez").read() == b"alive\n"
        with pytest.raises(HTTPError, match="403"):
            browser.open(f"http://127.0.0.1:{port}/")
        shown = place.run("page", "-c", str(place.settings))
        assert shown.returncode == 0, shown.stderr
        url = shown.stdout.strip()
        assert url.startswith(f"http://127.0.0.1:{port}/?token=")
        with browser.open(url) as answer:
            assert answer.status == 200
            assert answer.url == f"http://127.0.0.1:{port}/"
        with browser.open(f"http://127.0.0.1:{port}/") as answer:
            assert answer.status == 200
        found = json.loads(place.run("page", "--json", "-c", str(place.settings)).stdout)
        assert found["seconds"] == 600
        assert found["url"] != url


@pytest.mark.rule("MON-28")
def test_without_a_listener_for_browsers_the_command_says_what_to_set(place: Place) -> None:
    with place.serving():
        refused = place.run("page", "-c", str(place.settings))
    assert refused.returncode != 0
    assert "http.sock" in refused.stderr
    assert 'set http.listen = "TCP://127.0.0.1:8022"' in refused.stderr


@pytest.mark.rule("MON-23", "BI-C5")
def test_an_address_in_use_refuses_the_start_and_the_check(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"TCP://127.0.0.1:{taken.getsockname()[1]}"
        with place.settings.open("a") as file:
            file.write(f'[http]\nlisten = "{address}"\n')
        for done in (place.serve(), place.check()):
            assert done.returncode == 69, done.stderr
            assert address in done.stderr + done.stdout
            assert "http.listen" in done.stderr + done.stdout


@pytest.mark.rule("SX-25")
def test_plain_http_beyond_this_machine_is_refused(place: Place) -> None:
    with place.settings.open("a") as file:
        file.write('[http]\nlisten = "TCP://0.0.0.0:0"\n')
    done = place.serve()
    assert done.returncode == 78
    assert "http.listen" in done.stderr
    assert "http.tls = true" in done.stderr
