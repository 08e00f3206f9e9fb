"""Real training runs from the command line."""

import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from places import BUILD, ROOT

LONG = ["--training.steps", "100000"]


def ranks_of(launcher):
    """Process ids of the ranks that a launcher has started, in rank order."""
    out = subprocess.run(["ps", "--ppid", str(launcher.pid), "-o", "pid="], capture_output=True,
                         text=True, check=False).stdout
    ranks = {}
    for pid in out.split():
        with open(f"/proc/{pid}/environ", "rb") as environment:
            variables = dict(v.split(b"=", 1) for v in environment.read().split(b"\0") if b"=" in v)
        if b"RANK" in variables:
            ranks[int(variables[b"RANK"])] = int(pid)
    return [ranks[rank] for rank in sorted(ranks)]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def read_until(process, pattern):
    for line in process.stdout:
        if re.search(pattern, line):
            return
    raise AssertionError(f"ended before a line with {pattern}: {process.stderr.read()}")


def test_records_hold_what_a_dashboard_needs(runs):
    records = runs.steps("m.jsonl", "--job.nproc_per_node", "2")
    assert [r["step"] for r in records] == list(range(1, 9))
    for key in ("loss", "grad_norm", "lr", "tokens_per_second", "step_seconds",
                "exposed_comm_seconds", "peak_unsharded_bytes", "peak_rss_bytes"):
        assert all(r[key] >= 0 for r in records), key
    assert records[-1]["loss"] < records[0]["loss"]


def test_step_report_divides_the_time_P1(runs):
    for record in runs.steps("m.jsonl", "--job.nproc_per_node", "2"):
        parts = [record[k] for k in ("compute_seconds", "exposed_comm_seconds", "data_seconds",
                                     "optimizer_seconds")]
        assert all(part >= 0 for part in parts)
        assert sum(parts) == pytest.approx(record["step_seconds"], rel=0.05)


def test_loss_curve_is_the_same_for_any_number_of_ranks(runs):
    curves = [[r["loss"] for r in runs.steps(f"{n}.jsonl", "--job.nproc_per_node", str(n))]
              for n in (1, 2, 4)]
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)
    assert curves[2] == pytest.approx(curves[0], rel=1e-5)


def test_two_identical_runs_are_bitwise_equal(runs):
    def numbers(name):
        return [(r["loss"], r["grad_norm"]) for r in runs.steps(name, "--job.nproc_per_node", "2")]
    assert numbers("a.jsonl") == numbers("b.jsonl")


def test_threads_processes_and_messages_train_alike(runs):
    def losses(name, backend):
        return [r["loss"] for r in runs.steps(name, "--job.nproc_per_node", "2",
                                              "--comm.backend", backend)]
    expected = losses("threads.jsonl", "local")
    assert losses("processes.jsonl", "shm") == expected
    assert losses("messages.jsonl", "gloo") == expected


def test_every_arrangement_of_ranks_trains_alike(runs):
    def losses(name, *flags):
        return [r["loss"] for r in runs.steps(name, "--job.nproc_per_node", "4", *flags)]
    expected = losses("full.jsonl")
    hybrid = ["--parallelism.sharding_strategy", "HYBRID_SHARD",
              "--parallelism.data_parallel_replicate_degree", "2"]
    assert losses("hybrid.jsonl", *hybrid) == pytest.approx(expected, rel=1e-5)
    divided = [*hybrid, "--parallelism.shard_optimizer_over_replicas", "true"]
    assert losses("divided.jsonl", *divided) == pytest.approx(expected, rel=1e-5)
    optimizer = ["--parallelism.sharding_strategy", "SHARD_OPTIMIZER_ONLY"]
    assert losses("optimizer.jsonl", *optimizer) == pytest.approx(expected, rel=1e-5)
    messages = ["--comm.backend", "gloo", "--comm.allgather_bucket_size", "4000000",
                "--comm.reduce_scatter_bucket_size", "4000000",
                "--comm.gradient_predivide_factor", "2", "--parallelism.forward_prefetch", "2",
                "--parallelism.reshard_after_forward", "2"]
    assert losses("messages.jsonl", *messages) == pytest.approx(expected, rel=1e-5)


def test_M1_eight_jobs_at_once_need_no_port(runs):
    jobs = [runs.start("--job.nproc_per_node", "2", "--training.steps", "2") for _ in range(8)]
    for job in jobs:
        _, errors = job.communicate(timeout=200)
        assert job.returncode == 0, errors


def test_M1_a_busy_port_is_named(runs):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = runs.run("--job.nproc_per_node", "2", "--job.master_port", port)
    assert done.returncode == 1
    assert port in done.stderr


def test_ranks_started_by_something_else_find_each_other(runs):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = runs.folder / "m.jsonl"
    jobs = [runs.start("--metrics.jsonl", str(path), RANK=str(rank), WORLD_SIZE="2",
                       LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port)) for rank in (0, 1)]
    for job in jobs:
        _, errors = job.communicate(timeout=120)
        assert job.returncode == 0, errors
    losses = [json.loads(line)["loss"] for line in path.read_text().splitlines()]
    assert losses == [r["loss"] for r in runs.steps("own.jsonl", "--job.nproc_per_node", "2")]


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_C5_a_rank_that_fails_in_the_step_loop_ends_all_within_10_seconds(runs, backend):
    """Rank 0 alone writes the metrics; a device that is full fails it after the first step."""
    job = runs.start("--job.nproc_per_node", "3", "--training.global_batch_size", "9",
                     "--comm.backend", backend, "--metrics.jsonl", "/dev/full", *LONG)
    read_until(job, r"training starts|step")
    ranks = ranks_of(job)
    began = time.monotonic()
    _, errors = job.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert job.returncode == 1
    first = errors.strip().splitlines()[0]
    assert "rank 0" in first and "metrics.jsonl" in first and "No space left" in first, errors
    assert not any(alive(pid) for pid in ranks)


@pytest.mark.parametrize("signal_number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_all_ranks_cleanly(runs, signal_number, code):
    job = runs.start("--job.nproc_per_node", "3", "--training.global_batch_size", "9", *LONG)
    read_until(job, r"step: +2 ")
    pids = ranks_of(job)
    assert len(pids) == 3
    job.send_signal(signal_number)
    out, errors = job.communicate(timeout=90)
    assert job.returncode == code, errors
    assert "stopped" in out + errors
    assert "had to be killed" not in errors
    assert not any(alive(pid) for pid in pids)


def test_a_killed_rank_ends_the_job_and_is_named(runs):
    job = runs.start("--job.nproc_per_node", "3", "--training.global_batch_size", "9", *LONG)
    read_until(job, r"step: +2 ")
    pids = ranks_of(job)
    os.kill(pids[1], signal.SIGKILL)
    start = time.monotonic()
    _, errors = job.communicate(timeout=90)
    assert time.monotonic() - start < 10
    assert job.returncode == 1
    assert "rank 1" in errors.splitlines()[0]
    assert "SIGKILL" in errors
    assert not any(alive(pid) for pid in pids)


def wait_for(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def doctor(runs, *arguments):
    done = subprocess.run([str(runs.binary), "doctor", "trace", *arguments], capture_output=True,
                          text=True, cwd=runs.folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_usr2_shows_where_a_stalled_run_stands(runs, backend):
    job = runs.start("--job.nproc_per_node", "3", "--training.global_batch_size", "9",
                     "--comm.backend", backend, *LONG)
    read_until(job, r"step: +2 ")
    pids = ranks_of(job)
    os.kill(pids[1], signal.SIGSTOP)
    traces = runs.folder / "comm_traces"

    def stuck():
        job.send_signal(signal.SIGUSR2)
        time.sleep(0.2)
        if not all((traces / f"flight_rank{rank}.json").exists() for rank in (0, 2)):
            return False
        return "of rank 1 there is no record" in doctor(runs, "comm_traces")

    wait_for(stuck, "ranks 0 and 2 to stand still")
    assert not (traces / "flight_rank1.json").exists()
    os.kill(pids[1], signal.SIGCONT)
    wait_for((traces / "flight_rank1.json").exists, "the record of rank 1")
    report = json.loads(doctor(runs, "--json", "comm_traces"))
    assert report["no_record"] == []
    assert {r["reason"] for r in report["records"]} == {"SIGUSR2"}
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=90)
    assert job.returncode == 143


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_timeout_leaves_flight_records_that_name_the_culprit(runs, backend):
    job = runs.start("--job.nproc_per_node", "3", "--training.global_batch_size", "9",
                     "--comm.backend", backend, "--comm.timeout_seconds", "2",
                     "--comm.trace_folder", "made/here", *LONG)
    read_until(job, r"step: +2 ")
    pids = ranks_of(job)
    os.kill(pids[1], signal.SIGSTOP)
    _, errors = job.communicate(timeout=90)
    assert job.returncode == 1
    assert "flight record: made/here/flight_rank" in errors
    text = doctor(runs, "made/here")
    assert "rank 1" in text.split("\n\n")[1]


def test_no_folder_no_flight_records(runs):
    job = runs.start("--job.nproc_per_node", "2", "--comm.trace_folder", "", *LONG)
    read_until(job, r"step: +2 ")
    job.send_signal(signal.SIGUSR2)
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    _, errors = job.communicate(timeout=90)
    assert "flight" not in errors
    assert [p.name for p in runs.folder.iterdir()] == ["text.txt"]


def test_a_ranks_own_error_comes_first(runs):
    done = runs.run("--job.nproc_per_node", "3", "--training.global_batch_size", "9",
                    "--data.path", "/nowhere/text.txt")
    assert done.returncode == 1
    assert "/nowhere/text.txt" in done.stderr.splitlines()[0]


def test_nothing_is_left_in_shared_memory(runs):
    def leftovers():
        with open("/proc/net/unix", encoding="ascii", errors="replace") as sockets:
            return {line.split()[-1] for line in sockets if "fullshard" in line}
    before = leftovers(), set(os.listdir("/dev/shm"))
    assert runs.run("--job.nproc_per_node", "2").returncode == 0
    assert (leftovers(), set(os.listdir("/dev/shm"))) == before


def test_the_readmes_example_is_the_one_that_is_built():
    code = (ROOT / "examples" / "quickstart" / "main.cpp").read_text(encoding="utf-8")
    assert code in (ROOT / "README.md").read_text(encoding="utf-8")


def run_example(runs, name, ranks):
    """What each rank prints."""
    program = str(BUILD / "examples" / f"example_{name}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    jobs = []
    for rank in range(ranks):
        variables = dict(OMP_NUM_THREADS="1")
        if ranks > 1:
            variables.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                             MASTER_PORT=str(port))
        jobs.append(subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     text=True, env={**runs.environment, **variables}))
    outputs = [job.communicate(timeout=120) for job in jobs]
    assert all(job.returncode == 0 for job in jobs), outputs
    return [output for output, _ in outputs]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_quickstart_learns(runs, ranks):
    losses = [float(line) for line in run_example(runs, "quickstart", ranks)[0].split()]
    assert len(losses) == 4
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_example_of_strategies_learns_under_its_budget(runs, ranks):
    output = run_example(runs, "strategies", ranks)[0]
    table, rest = output.split("\n\n")
    assert "whole on rank" in table and "all ranks" in table
    *losses, peak = rest.splitlines()
    losses = [float(line) for line in losses]
    assert len(losses) == 3
    assert losses[-1] < 0.5 * losses[0]
    assert int(peak.split()[-2]) <= 160 * 1024
