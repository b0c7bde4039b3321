"""Endpoints: the servers of one machine, as a small YAML file."""

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from photodup.core.addresses import grpc_address, http_address
from photodup.core.errors import PhotodupError
from photodup.core.files import real_path, write_atomically
from photodup.embedding.backends import Backend, backend_of_model, parse_backend, wires_of
from photodup.serving.triton import control_key

# Triton's models in our GPU images.
DEPLOYED = (
    *(f"openclip_vit_b32{wire}" for wire in ("", "_fp16", "_uint8", "_jpeg")),
    *(f"openclip_vit_b32_trt{wire}" for wire in ("", "_uint8", "_jpeg")),
)
USUAL_SERVICE = "pytorch", "fp32"  # engine and precision of the FastAPI service where nobody names others
NO_GPU, UNKNOWN_GPU = "none", "unknown"
UNNAMED_GPU = "GPU of unknown model"
"""The GPU of a server that does not name it: Triton's metrics have only its UUID."""


class Endpoints(BaseModel):
    """Servers of one machine.

    Attributes:
        name: short, used for directories: `embedded`, `a100-texas`.
        gpu: model of the accelerator; "none" for a CPU, "unknown" if not stated.
        gpus: number of GPUs.
        price_per_hour_usd: price of the whole machine; without one no cost is computed.
        location: of the machine, in words.
        backends: backend name -> address: `http://host:port`, and `host:port` for gRPC. Backends that are not listed
            are reported as not measured.
        metrics: `fastapi` and `triton` -> address of the Prometheus page; `fastapi-<engine>-<precision>` for a second
            FastAPI service.
        triton_control_key: key of Triton's model control, or `env:NAME` for an environment variable that holds it.
            Never printed, never in a record.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)  # one field is a key

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    gpu: str = Field(default=UNKNOWN_GPU, min_length=1)
    gpus: int = Field(default=1, ge=1)
    price_per_hour_usd: float | None = Field(default=None, ge=0)
    location: str = ""
    backends: dict[str, str] = Field(min_length=1)
    metrics: dict[str, str] = {}
    triton_control_key: SecretStr | None = None

    @field_validator("triton_control_key")
    @classmethod
    def _key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None:
            reference = key.get_secret_value()
            try:
                if not (reference.startswith("env:") and reference[4:].isidentifier()):
                    control_key.check_key(reference, "it")
            except PhotodupError as error:
                raise ValueError(f"{str(error).rstrip('.')}, or env:NAME") from None
        return key

    def has(self, backend: Backend) -> bool:
        """Return whether a backend is listed or local."""
        return backend.is_local or backend.listed_as in self.backends

    def use_control_key(self) -> None:
        """Use this file's key, if any, to control its Tritons from this process."""
        if self.triton_control_key is not None:
            tritons = [url for name, url in self.backends.items() if parse_backend(name).triton_model]
            control_key.use_key(tritons, self.triton_control_key.get_secret_value())

    @property
    def triton_grpc(self) -> str:
        """Address to control Triton, `host:port`; empty if no gRPC backend is listed."""
        listed = ((parse_backend(name), url) for name, url in self.backends.items())
        return next((url for b, url in listed if b.server == "triton" and b.protocol == "grpc"), "")

    @field_validator("backends")
    @classmethod
    def _addresses(cls, backends: dict[str, str]) -> dict[str, str]:
        clean: dict[str, str] = {}
        for name, url in backends.items():
            try:
                backend = parse_backend(name)
                address = (grpc_address if backend.protocol == "grpc" else http_address)(url, name)
            except PhotodupError as error:
                raise ValueError(str(error).removesuffix(".")) from None
            if clean.setdefault(backend.name, address) != address:
                raise ValueError(f"{name}: {backend.name} is listed twice, with two addresses")
        return clean

    def metrics_url(self, backend: str | Backend) -> str | None:
        """Return the metrics page of a backend's server, or None."""
        parsed = parse_backend(backend)
        page = f"{parsed.server}-{parsed.engine}-{parsed.precision}"
        usual = parsed.server != "fastapi" or (parsed.engine, parsed.precision) == ("pytorch", "fp32")
        return self.metrics.get(page, self.metrics.get(parsed.server) if usual else None)


@dataclass(frozen=True)
class AddressLine:
    """Host and ports of one machine's servers, as typed in one line.

    Attributes:
        host: name or address.
        fastapi, triton_http, triton_grpc, triton_metrics: their ports; 0 where there is none.
    """

    host: str
    fastapi: int = 0
    triton_http: int = 0
    triton_grpc: int = 0
    triton_metrics: int = 0

    def url(self, port: int) -> str:
        return f"http://{self.host}:{port}"


def read_address_line(text: str) -> AddressLine | None:
    """Read `HOST:FASTAPI,TRITON_HTTP,TRITON_GRPC,TRITON_METRICS`; None for a text that is no address line, such as a path.

    Ports at the end may be left out, and 0 stands for a server that is not there. An IPv6 address stands in brackets.

    Raises:
        PhotodupError: more than four ports, one above 65535, or none but zeros.
    """
    if not (parts := re.fullmatch(r"(\[[^\]]+\]|[^\s/:,]+):([\d,\s]+)", text.strip())):
        return None
    host, *ports = parts[1], *(port.strip() for port in parts[2].split(","))
    if (
        len(ports) > 4
        or not all(port.isdecimal() and int(port) < 65536 for port in ports)
        or not any(map(int, ports))
    ):
        raise PhotodupError(
            f"ENDPOINTS {text[:80]!r} should be HOST:FASTAPI,TRITON_HTTP,TRITON_GRPC,TRITON_METRICS, with ports up to 65535 "
            "and 0 for a server that is not there."
        )
    return AddressLine(host, *map(int, ports))


_MOST_BYTES = 1_000_000  # of a handwritten file


def load_endpoints(path: Path | str) -> Endpoints:
    """Read an endpoints file.

    Raises:
        PhotodupError: missing, not YAML, or not an endpoints file; names the key and the remedy.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MOST_BYTES or not (path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, f"no regular file of at most {_MOST_BYTES:,} bytes")
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        files = ", ".join(sorted(str(p) for p in path.parent.glob("*.yaml"))) or "none"
        raise PhotodupError(
            f"Endpoints file {path}: {error.strerror}. Files in that folder: {files}."
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PhotodupError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise PhotodupError(f"{path} should be a mapping with name and backends; see notebooks/endpoints/.")
    return _checked(str(path), data)


def replaced(endpoints: Endpoints, **fields: object) -> Endpoints:
    """Return the endpoints with other fields.

    Raises:
        PhotodupError: an invalid value; names the field.
    """
    return _checked(endpoints.name, dict(endpoints) | fields)


def _checked(where: str, data: Mapping[str, Any]) -> Endpoints:
    """Return the endpoints; raise a `PhotodupError` that names the wrong key."""
    try:
        return Endpoints(**data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "file"
        raise PhotodupError(f"{where}: {key}: {first['msg'].removeprefix('Value error, ')}.") from None


def save_endpoints(endpoints: Endpoints, path: Path) -> None:
    """Write an endpoints file; only this user may read one with a key."""
    data, key = endpoints.model_dump(exclude={"triton_control_key"}), endpoints.triton_control_key
    if key is not None:
        data["triton_control_key"] = key.get_secret_value()
    write_atomically(
        real_path(path), yaml.safe_dump(data, sort_keys=False), mode=None if key is None else 0o600
    )


def from_ports(
    host: str = "127.0.0.1",
    fastapi_port: int = 8002,
    triton_http_port: int = 8003,
    triton_grpc_port: int = 8004,
    triton_metrics_port: int = 8005,
    *,
    models: Sequence[str] | None = None,
    service: tuple[str, str] = USUAL_SERVICE,
    more_services: Mapping[tuple[str, str], str] = MappingProxyType({}),
    **fields: Any,
) -> Endpoints:
    """Build the endpoints of one machine from its ports.

    Args:
        host: name or address.
        fastapi_port: of the FastAPI service; 0 for none. The same for Triton's three.
        models: Triton's loaded models; default `DEPLOYED`.
        service: engine and precision of the FastAPI service.
        more_services: URL of each further FastAPI service, by engine and precision.
        fields: other fields of `Endpoints`; the name defaults to the host.

    Raises:
        PhotodupError: an invalid host, or no port at all; names the field.
    """
    backends: dict[str, str] = {}
    metrics: dict[str, str] = {}
    services = {service: f"http://{host}:{fastapi_port}"} if fastapi_port else {}
    for (engine, precision), url in {**services, **more_services}.items():
        for wire in wires_of("fastapi"):
            backends[Backend("fastapi", engine, precision, "http", wire).name] = url
        is_usual = (engine, precision) == USUAL_SERVICE
        metrics["fastapi" if is_usual else f"fastapi-{engine}-{precision}"] = f"{url}/metrics"
    for backend in filter(None, map(backend_of_model, DEPLOYED if models is None else models)):
        if triton_http_port:
            backends[backend.name] = f"http://{host}:{triton_http_port}"
        if triton_grpc_port:
            backends[replace(backend, protocol="grpc").name] = f"{host}:{triton_grpc_port}"
    if triton_metrics_port:
        metrics["triton"] = f"http://{host}:{triton_metrics_port}/metrics"
    return _checked(host, {"name": host, **fields, "backends": backends, "metrics": metrics})
