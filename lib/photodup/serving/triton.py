"""Triton, from configuration to running server: the names that notebooks and commands import."""

from photodup.serving.triton_config import (
    BATCHING,
    parse_config,
    read_config,
    set_batching,
    set_parameter,
    write_config,
)
from photodup.serving.triton_repository import WEIGHTS, add_version, render_repository
from photodup.serving.triton_server import EmbeddedTriton, triton_venv

__all__ = [
    "BATCHING",
    "WEIGHTS",
    "EmbeddedTriton",
    "add_version",
    "parse_config",
    "read_config",
    "render_repository",
    "set_batching",
    "set_parameter",
    "triton_venv",
    "write_config",
]
