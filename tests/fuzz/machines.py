"""The state machines of trash and catalogue, again and again from other seeds until the time is over."""

import os
import subprocess
import sys
import time

from support.paths import ROOT

MACHINES = ("tests/photos/servers/test_hostile_machine.py", "tests/photos/test_catalogue_machine.py")


def fuzz(seconds: float) -> bool:
    """Run the machines in turns for about `seconds`; True if every law held."""
    examples = int(os.environ.get("PHOTODUP_FUZZ_EXAMPLES", 40))
    environment = os.environ | {"PHOTODUP_FUZZ_EXAMPLES": str(examples)}
    deadline, runs, sound = time.monotonic() + seconds, 0, True
    while runs < len(MACHINES) or time.monotonic() < deadline:
        seed = time.time_ns() % 2**32
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
        command += [MACHINES[runs % len(MACHINES)], f"--hypothesis-seed={seed}"]
        done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
        said = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
        print(f"seed {seed}, {examples} examples of up to 20 to 30 steps: {'; '.join(said)}", flush=True)
        if done.returncode:
            print(done.stdout[-6000:])
            sound = False
        runs += 1
    print(f"{runs} runs, {runs * examples} examples")
    return sound
