"""Ranks that other launchers start: torchrun and Open MPI for real, Slurm by its variables."""

import json
import subprocess

import pytest
from places import ROOT

PYTHON = ROOT / ".deps" / "test-python" / "bin" / "python"
TORCHRUN = [str(PYTHON), "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]


def run_under(launcher, runs, *arguments, **variables):
    return subprocess.run([*launcher, *runs.command(*arguments)], capture_output=True, text=True,
                          timeout=200, cwd=runs.folder, env={**runs.environment, **variables})


def losses_of(path):
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


@pytest.fixture
def expected(runs):
    """The losses of the same two ranks under our own launcher."""
    return [step["loss"] for step in runs.steps("own.jsonl", "--job.nproc_per_node", "2")]


@pytest.mark.parametrize("launcher, found", [
    # Its agent runs the store, and ranks are clients of it.
    (TORCHRUN, ["rank 0 (RANK)", "world size 2 (WORLD_SIZE)", "TORCHELASTIC_USE_AGENT_STORE"]),
    (MPIRUN, ["rank 0 (OMPI_COMM_WORLD_RANK)", "world size 2 (OMPI_COMM_WORLD_SIZE)",
              "master port"]),
], ids=["torchrun", "mpirun"])  # fmt: skip
def test_ranks_of_a_launcher_train_together(runs, expected, launcher, found):
    path = runs.folder / "steps.jsonl"
    done = run_under(launcher, runs, "--metrics.jsonl", str(path))
    assert done.returncode == 0, done.stderr
    assert losses_of(path) == expected
    told = [line for line in done.stderr.splitlines() if "world size" in line]
    assert len(told) == 1, done.stderr  # once for the job, by rank 0
    for words in found:
        assert words in told[0]


def test_tasks_of_srun_train_together(runs, expected):
    path = runs.folder / "steps.jsonl"
    job = {"SLURM_JOB_ID": str(runs.folder), "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2",
           "SLURM_NODELIST": "localhost", "SLURM_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    ranks = [runs.start("--metrics.jsonl", str(path), SLURM_PROCID=rank, SLURM_LOCALID=rank, **job)
             for rank in ("0", "1")]  # fmt: skip
    errors = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    assert losses_of(path) == expected
    assert "rank 0 (SLURM_PROCID), world size 2 (SLURM_NTASKS)" in errors[0]
    assert errors[1] == ""


def test_torchrun_shows_why_a_rank_failed(runs):
    done = run_under(TORCHRUN, runs, "--data.path", "/nowhere/text.txt")
    assert done.returncode != 0
    summary = done.stderr[done.stderr.index("Root Cause"):]
    assert "fullshard.file: " in summary and "/nowhere/text.txt" in summary
