"""A module that Python exports, this library shards and trains, and Python loads again."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ.get("FULLSHARD_BUILD_DIR", ROOT / "build" / "release"))
PYTHON = ROOT / ".deps" / "test-python" / "bin" / "python"
STEPS = 12
TOLERANCE = {"float32": "1e-5", "float64": "1e-10"}


def call(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def train_with_threads(folder):
    call(BUILD / "tests" / "train_script", folder, STEPS, 2)


def train_with_processes(folder):
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [
        subprocess.Popen([BUILD / "tests" / "train_script", folder, str(STEPS)],
                         stderr=subprocess.PIPE, text=True, env={**os.environ, **job, "RANK": rank})
        for rank in ("0", "1")
    ]  # fmt: skip
    errors = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors


RUNS = [("float32", train_with_threads), ("float64", train_with_threads),
        ("float64", train_with_processes)]  # fmt: skip


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """What Python says of each run's files; Python starts twice only, since importing torch takes
    longer than all the training."""
    folders = [tmp_path_factory.mktemp("run") for _ in RUNS]
    words = [word for folder, (dtype, _) in zip(folders, RUNS) for word in (folder, dtype)]
    call(PYTHON, HERE / "peer.py", "export", STEPS, *words)
    for folder, (_, train) in zip(folders, RUNS):
        train(folder)
    words = [TOLERANCE.get(word, word) for word in words]
    return call(PYTHON, HERE / "peer.py", "check", *words).splitlines()


@pytest.mark.parametrize("run", range(len(RUNS)), ids=["float32", "float64", "processes"])
def test_python_loads_what_was_trained_here_and_finds_it_equal(verdicts, run):
    assert verdicts[run] == "equal"
