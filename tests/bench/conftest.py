"""What the tests of `fullshard bench` share: the executable with the real engine, and a peer."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FULLSHARD_BUILD_DIR", ROOT / "build" / "release"))

# What the bench asks of PyTorch before it runs the script.
TORCH = """
flushed = []
set_flush_denormal = flushed.append
"""

# In place of torch.distributed.run: as many processes of the script, all told their rank.
RUN_MODULE = """
import os, subprocess, sys
assert sys.argv[1:3] == ["--standalone", "--nproc-per-node"], sys.argv
assert sys.argv[4] == "--no-python", sys.argv
world, command = int(sys.argv[3]), sys.argv[5:]
ranks = [subprocess.Popen(command, env={**os.environ, "RANK": str(r)}) for r in range(world)]
sys.exit(max(rank.wait() for rank in ranks))
"""

PEER = """
import argparse, json, os, sys, time, torch
assert torch.flushed == [True] and sys.path[0] == os.path.dirname(os.path.abspath(__file__))
parser = argparse.ArgumentParser()
parser.add_argument("--mode")
for name in ("layers", "dim", "heads", "vocab", "seq", "batch", "steps"): parser.add_argument("--" + name, type=int)
args = parser.parse_args()
if args.mode == "broken": sys.exit("the process group could not be made")
folder = os.environ.get("PEER_MEM_DIR")
if folder:
    open(f"{folder}/{os.getpid()}.pid", "w").close()
    while not os.path.exists(folder + "/go"): time.sleep(0.001)
    held = b"x" * (16 << 20)
    time.sleep(0.3)
if os.environ["RANK"] == "0":
    tokens = args.seq * args.batch * 2
    print(json.dumps(dict(mode=args.mode, step_s=0.5, tok_s=tokens / 0.5, loss=5.5, fwd=0.1, bwd=0.3, opt=0.1)))
"""


class Bench:
    def __init__(self, folder):
        self.folder = folder
        foreign = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
        self.environment = {k: v for k, v in os.environ.items() if k not in foreign}

    def add_peer(self):
        package = self.folder / "modules" / "torch" / "distributed"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").write_text(TORCH)
        (package / "__init__.py").touch()
        (package / "run.py").write_text(RUN_MODULE)
        (self.folder / "peer.py").write_text(PEER)
        self.environment["PYTHONPATH"] = str(package.parents[1])
        return ["--peer", "peer.py", "--peer-python", sys.executable]

    def run(self, *arguments, benchmark="step"):
        return subprocess.run([BUILD / "bin" / "fullshard", "bench", benchmark, *arguments],
                              capture_output=True, text=True, timeout=300, cwd=self.folder,
                              env=self.environment, check=False)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)
