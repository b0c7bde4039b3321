"""Why a server cannot listen, in the words of the fault that it is."""

import os
import socket

import pytest
from support.command import one_sentence

from photodup.core.addresses import cannot_listen
from photodup.core.errors import PhotodupError
from photodup.serving.embedded import embedded_servers
from photodup.serving.process.ports import claim_ports
from photodup.serving.triton.server import EmbeddedTriton


def test_an_address_of_another_machine_is_not_called_a_port_in_use() -> None:
    with one_sentence(r"^192\.0\.2\.7 is no address of this machine.*`ip addr` shows\.$"):
        claim_ports("192.0.2.7", {"Triton HTTP": 0})
    with (
        pytest.raises(PhotodupError, match=r"192\.0\.2\.7 is no address of this machine, so FastAPI"),
        embedded_servers(host="192.0.2.7", models=[]),
    ):
        pass


def test_a_name_that_nobody_knows_is_named() -> None:
    with pytest.raises(PhotodupError, match=r"^'nonesuch\.invalid' is no address and no known host name"):
        claim_ports("nonesuch.invalid", {"FastAPI": 0})


def test_a_port_in_use_says_so_without_the_systems_words_before_anything_is_started(tmp_path) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(PhotodupError, match=rf"^Port {port} for FastAPI is in use: stop what"),
            embedded_servers(fastapi_port=port, progress=said.append),
        ):
            pass
        cases = ((0, port, f"Port {port} for Triton gRPC is in use"), (9, 9, "cannot share a port"))
        for http, grpc, words in cases:
            with pytest.raises(PhotodupError, match=words):
                EmbeddedTriton(tmp_path, [], ports=(http, grpc, 0))
    assert said == []  # no export, no server


def test_other_reasons_are_told_apart() -> None:
    said = cannot_listen(PermissionError(13, "no"), "127.0.0.1", 80, "FastAPI")
    assert said.startswith("Port 80 for FastAPI needs rights that you do not have")
    said = cannot_listen(OSError(105, os.strerror(105)), "127.0.0.1", 8002, "FastAPI")
    assert said == "FastAPI cannot listen on 127.0.0.1, port 8002: No buffer space available."
