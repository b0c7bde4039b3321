"""A command of a user's that starts a server, run for the length of a block."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from photodup.errors import PhotodupError
from photodup.paths import build_dir
from photodup.serving.process.ports import claim_ports
from photodup.serving.process.process import ServerProcess
from photodup.settings import inherited

Ready = TypeVar("Ready")


@dataclass
class Command:
    """A command that starts a server; `{port}` in it is a free port, which the variable PORT holds too."""

    words: str
    start_s: float
    port: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.port = claim_ports("127.0.0.1", {self.words: 0})[self.words]

    @contextlib.contextmanager
    def running(self, ready: Callable[[], Ready]) -> Iterator[Ready]:
        """Run it; the block gets what `ready` returns once it no longer raises a `PhotodupError`.

        Raises:
            PhotodupError: it ended, or was not ready in time; with what `ready` said and its last error.
        """
        found, said = list[Ready](), ""

        def is_ready() -> bool:
            nonlocal said
            try:
                found.append(ready())
            except PhotodupError as error:
                said = str(error)
            return bool(found)

        command = shlex.split(self.words.replace("{port}", str(self.port)))
        log = build_dir() / "logs" / f"command-{self.port}.log"
        with ServerProcess(repr(self.words), command, log, inherited(PORT=str(self.port))) as process:
            process.wait_ready(is_ready, self.start_s, explain=lambda log: said)
            yield found[0]
