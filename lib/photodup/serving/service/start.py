"""Starting the FastAPI service in a process of its own, once for all who need one."""

import sys
from collections.abc import Callable, Mapping

from photodup.core.paths import build_dir
from photodup.core.settings import inherited
from photodup.serving.process.ports import claim_ports, reachable
from photodup.serving.process.server_process import ServerProcess, answers

# Whoever starts one from here measures queues, so they may grow; `photodup serve` alone refuses what waits long.
PATIENT = {"MAX_WAIT_S": "60"}


def patient(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a service whose queues are measured; what this process sets counts more than PATIENT."""
    return {"PYTHONUNBUFFERED": "1"} | PATIENT | inherited() | dict(settings or {})


def command() -> list[str]:
    """Return the command that runs the service with this Python; its settings are environment variables."""
    return [sys.executable, "-P", "-m", "photodup.serving.service"]


def is_ready(url: str) -> bool:
    """Say whether the service at `url` embeds by now; see `answers`."""
    return answers(f"{url}/readyz")


class ServiceProcess(ServerProcess):
    """The service under the watchman of `photodup.serving.process`: it ends with `stop`, or with this process.

        with ServiceProcess(settings={"MODEL_PRETRAINED": "random:0"}) as service:
            connect(service.url)

    Args:
        host: address to listen on.
        port: 0 takes a free one.
        settings: environment variables of the service, before those of this process. Where neither names
            MAX_WAIT_S, requests wait for up to 60 s instead of being refused.

    Raises:
        PhotodupError: the port is in use, or the address is not this machine's.
    """

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        self.port = claim_ports(host, {"FastAPI": port})["FastAPI"]
        self.url = f"http://{reachable(host)}:{self.port}"
        environment = patient({"HOST": host, "PORT": str(self.port), **(settings or {})})
        log = build_dir() / "logs" / f"fastapi-{self.port}.log"
        super().__init__("FastAPI", command(), log, environment)

    def wait_until_ready(
        self, timeout_s: float = 300.0, progress: Callable[[str], None] | None = None
    ) -> float:
        """Wait until it embeds; return the seconds since the call.

        Raises:
            PhotodupError: it ended, or was not ready in time; quotes its log.
        """
        return self.wait_ready(lambda: is_ready(self.url), timeout_s, progress)
