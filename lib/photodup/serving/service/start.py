"""Start the FastAPI service in a process of its own."""

import sys
from collections.abc import Callable, Mapping

from photodup.core.paths import build_dir
from photodup.core.settings import inherited
from photodup.serving.process.ports import claim_ports, reachable_host
from photodup.serving.process.server_process import ServerProcess, is_answering

# Requests to services started here may wait, since their queues are measured; plain `photodup serve` refuses long waits.
PATIENT = {"MAX_WAIT_S": "60"}


def patient_environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a service whose queues are measured; this process's variables override PATIENT."""
    return {"PYTHONUNBUFFERED": "1"} | PATIENT | inherited() | dict(settings or {})


def command() -> list[str]:
    """Return the command that runs the service with this Python; its settings are environment variables."""
    return [sys.executable, "-P", "-m", "photodup.serving.service"]


def is_ready(url: str) -> bool:
    """Return whether the service at `url` is ready; see `is_answering`."""
    return is_answering(f"{url}/readyz")


class ServiceProcess(ServerProcess):
    """A supervised service process; it ends with `stop`, or with this process.

        with ServiceProcess(settings={"MODEL_PRETRAINED": "random:0"}) as service:
            connect(service.url)

    Args:
        host: address to listen on.
        port: 0 takes a free one.
        settings: environment variables of the service, which override those of this process. MAX_WAIT_S is 60 by
            default, so that requests wait instead of being refused.

    Raises:
        PhotodupError: the port is in use, or the address is not this machine's.
    """

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        self.port = claim_ports(host, {"FastAPI": port})["FastAPI"]
        self.url = f"http://{reachable_host(host)}:{self.port}"
        environment = patient_environment({"HOST": host, "PORT": str(self.port), **(settings or {})})
        log = build_dir() / "logs" / f"fastapi-{self.port}.log"
        super().__init__("FastAPI", command(), log, environment)

    def wait_until_ready(
        self, timeout_s: float = 300.0, progress: Callable[[str], None] | None = None
    ) -> float:
        """Wait until it embeds; return the seconds.

        Raises:
            PhotodupError: it ended or was not ready in time; quotes its log.
        """
        return self.wait_ready(lambda: is_ready(self.url), timeout_s, progress)
