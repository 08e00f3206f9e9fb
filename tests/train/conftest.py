"""What the tests of real training runs share: the executable with the real engine, and small runs."""

import json
import os
import subprocess

import pytest
from places import BUILD

# Small enough for a second, large enough for four ranks and several units.
SMALL = ["--model.n_layers", "2", "--model.dim", "32", "--model.n_heads", "2",
         "--training.seq_len", "32", "--training.global_batch_size", "8",
         "--training.steps", "8", "--lr_scheduler.warmup_steps", "2",
         "--validation.steps", "1", "--generation.bytes", "4",
         "--metrics.log_freq", "1", "--job.threads_per_rank", "1"]


class Runs:
    def __init__(self, folder):
        self.folder = folder
        self.binary = BUILD / "bin" / "fullshard"
        text = folder / "text.txt"
        text.write_text("".join(f"{i} sheep and {i * i % 97} goats went up the hill.\n"
                                for i in range(3000)), encoding="utf-8")
        self.data = ["--data.path", str(text)]
        ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                "OMP_NUM_THREADS")
        others = ("SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_")
        self.environment = {k: v for k, v in os.environ.items()
                            if k not in ours and not k.startswith(others)}

    def command(self, *arguments):
        return [str(self.binary), "train", *SMALL, *self.data, *arguments]

    def run(self, *arguments, **variables):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=120,
                              cwd=self.folder, env={**self.environment, **variables})

    def start(self, *arguments, **variables):
        return subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                env={**self.environment, **variables})

    def steps(self, name, *arguments):
        """The step records of a run that must succeed."""
        path = self.folder / name
        done = self.run("--metrics.jsonl", str(path), *arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)
