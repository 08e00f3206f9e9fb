"""What the command line's tests share: the executable, a folder, and the test engine."""

import json
import os
import subprocess

import pytest
from polling import wait_until

# Variables by which a surrounding launcher or user could change what a test sees.
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS",
           "FULLSHARD_CONFIG_JSON", "FULLSHARD_ERROR_FD", "FULLSHARD_STORE_FD")


class Fullshard:
    def __init__(self, binary, folder):
        self.binary = binary
        self.folder = folder
        self.environment = {k: v for k, v in os.environ.items() if k not in FOREIGN}
        self.environment["TEST_ENGINE_DIR"] = str(folder)

    def engine(self, order):
        self.environment["TEST_ENGINE"] = order
        return self

    def run(self, *arguments, **variables):
        return subprocess.run([self.binary, *arguments], capture_output=True, text=True,
                              timeout=60, cwd=self.folder, env={**self.environment, **variables})

    def start(self, *arguments, preexec_fn=None, **variables):
        return subprocess.Popen([self.binary, *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                env={**self.environment, **variables}, preexec_fn=preexec_fn)

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def shown(self, rank):
        """What the test engine was handed at `rank` ("alone" without RANK)."""
        return json.loads((self.folder / f"{rank}.json").read_text())

    def pids_when_ready(self, ranks):
        paths = [self.folder / f"ready{rank}" for rank in ranks]
        wait_until(lambda: all(p.exists() and p.read_text() for p in paths), "ranks to be ready")
        return [int(p.read_text()) for p in paths]


@pytest.fixture
def fullshard(tmp_path):
    return Fullshard(os.environ["FULLSHARD_TEST_BINARY"], tmp_path)
