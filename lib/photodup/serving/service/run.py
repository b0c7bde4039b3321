"""Running the service until it is stopped: settings, port, log, uvicorn."""

import logging
import sys
from types import FrameType

import uvicorn

from photodup.errors import PhotodupError
from photodup.serving.process.ports import claim_ports, exposure
from photodup.serving.service.app import create_app
from photodup.serving.service.settings import read_settings
from photodup.serving.service.slow_clients import ImpatientProtocol


def main() -> int:
    """Serve until SIGINT or SIGTERM; return 2 when it could not."""
    try:
        settings = read_settings()
        port = claim_ports(settings.host, {"the FastAPI service (PORT)": settings.port})
        settings.port = next(iter(port.values()))
    except PhotodupError as error:
        print(f"photodup: {error}", file=sys.stderr)
        return 2
    level = settings.log_level.lower()
    logging.basicConfig(
        level=level.upper().replace("TRACE", "DEBUG"), format="%(levelname)s %(name)s: %(message)s"
    )
    if not settings.api_key and (warning := exposure(settings.host, "The service", "API_KEY")):
        print(f"photodup: warning: {warning}", file=sys.stderr, flush=True)  # whatever LOG_LEVEL hides
    failures: list[str] = []

    def stop(sentence: str) -> None:
        failures.append(sentence)
        server.should_exit = True

    app = create_app(settings, stop)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.service.decoder.hurry()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level=level,
        access_log=level in ("debug", "trace"),  # a line per request costs as much as encoding the answer
        http=ImpatientProtocol,
        timeout_graceful_shutdown=settings.drain_seconds,
        timeout_keep_alive=75,  # longer than the pauses of a measurement with idle connections
    )
    server = Server(config)
    server.run()
    if failures:
        print(f"photodup: {failures[0]}", file=sys.stderr)
    return 2 if failures else 0
