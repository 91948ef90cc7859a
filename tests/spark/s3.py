"""An S3 server on loopback, in this process, with one bucket for each test."""

from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
import pytest
from moto.server import ThreadedMotoServer

BUCKET = "landing"


@contextmanager
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    """Run a server that the environment names, and give the file system of its bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    try:
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        system.mkdir(BUCKET)
        yield system
        system.invalidate_cache()
        system.rm(BUCKET, recursive=True)  # the next server in this process would have it
    finally:
        server.stop()
        fsspec.get_filesystem_class("s3").clear_instance_cache()
