"""Who runs the engine, with what, and how a job ends. The engine is the test's own."""

import os
import shutil
import signal
import socket

import pexpect
import pytest
from polling import wait_until


def gone(pid):
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_ranks_get_the_configuration_unchanged(fullshard):
    answer = fullshard.engine("show").run(
        "train", "--job.nproc_per_node", "2", "--optimizer.lr", "0.30000000000000004",
        "--training.seed", "9007199254740993", "--generation.prompt", 'ü "x"\n')
    assert answer.returncode == 0, answer.stderr
    first, second = fullshard.shown(0), fullshard.shown(1)
    assert first["handed"] == second["handed"]
    assert first["pid"] != second["pid"]
    assert first["config"]["optimizer"]["lr"] == 0.30000000000000004
    assert first["config"]["training"]["seed"] == 9007199254740993
    assert first["config"]["generation"]["prompt"] == 'ü "x"\n'
    assert first["config"]["job"]["nproc_per_node"] == 2
    assert (first["RANK"], second["RANK"], second["WORLD_SIZE"]) == ("0", "1", "2")


def threads(fullshard, rank):
    shown = fullshard.shown(rank)
    count = shown["config"]["job"]["threads_per_rank"]
    assert shown["OMP_NUM_THREADS"] == str(count)
    return count


def test_ranks_share_the_cores(fullshard):
    fullshard.engine("show").run("train", "--job.nproc_per_node", "1")
    cores = threads(fullshard, "alone")
    assert 1 <= cores <= len(os.sched_getaffinity(0))
    fullshard.run("train", "--job.nproc_per_node", "2")
    assert threads(fullshard, 0) == threads(fullshard, 1) == max(1, cores // 2)


def test_a_restricted_process_counts_only_its_own_cores(fullshard):
    one = min(os.sched_getaffinity(0))
    process = fullshard.engine("show").start(
        "train", preexec_fn=lambda: os.sched_setaffinity(0, {one}))
    process.communicate(timeout=60)
    assert fullshard.shown("alone")["pid"] == process.pid
    assert fullshard.shown("alone")["config"]["job"]["nproc_per_node"] == 1
    assert threads(fullshard, "alone") == 1


def test_threads_that_were_asked_for_are_used(fullshard):
    fullshard.engine("show").run("train", "--job.nproc_per_node", "2", OMP_NUM_THREADS="3")
    assert threads(fullshard, 1) == 3
    fullshard.run("train", "--job.nproc_per_node", "2", "--job.threads_per_rank", "5",
                  OMP_NUM_THREADS="3")
    assert threads(fullshard, 1) == 5


def test_one_rank_runs_in_this_process(fullshard):
    process = fullshard.engine("show").start("train", "--job.nproc_per_node", "1")
    process.communicate(timeout=60)
    assert fullshard.shown("alone")["pid"] == process.pid


def test_ranks_as_threads_are_the_engines_own(fullshard):
    process = fullshard.engine("show").start("train", "--job.nproc_per_node", "4",
                                             "--comm.backend", "local")
    process.communicate(timeout=60)
    shown = fullshard.shown("alone")
    assert shown["pid"] == process.pid
    assert shown["config"]["job"]["nproc_per_node"] == 4


STORE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_a_rank_of_another_launcher_is_just_that_rank(fullshard):
    answer = fullshard.engine("show").run("train", "--training.steps", "7", RANK="2",
                                          WORLD_SIZE="4", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2",
                                          **STORE)
    assert answer.returncode == 0, answer.stderr
    shown = fullshard.shown(2)
    assert shown["config"]["training"]["steps"] == 7
    assert shown["config"]["job"]["nproc_per_node"] == 2


@pytest.mark.parametrize("variables, expected", [
    ({"RANK": "0"}, "RANK is set but WORLD_SIZE is not"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'; it should be a process's number"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, but WORLD_SIZE is 2; ranks go from 0 to 1"),
    ({"RANK": "0", "WORLD_SIZE": "3"}, "MASTER_ADDR is not"),
    ({"RANK": "0", "WORLD_SIZE": "3", **STORE}, "must be a multiple of 3 ranks"),
])
def test_what_a_launcher_sets_is_checked(fullshard, variables, expected):
    answer = fullshard.engine("show").run("train", "--training.global_batch_size", "32",
                                          **variables)
    assert answer.returncode == 2
    assert expected in answer.stderr


@pytest.mark.parametrize("variables", [
    {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODELIST": "n[1-2]"},
    {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
     "OMPI_COMM_WORLD_LOCAL_SIZE": "2", **STORE},
])
def test_ranks_of_srun_and_mpirun_start_none_of_their_own(fullshard, variables):
    process = fullshard.engine("show").start("train", **variables)
    process.communicate(timeout=60)
    shown = fullshard.shown("alone")  # without RANK; the real engine reads the same variables
    assert shown["pid"] == process.pid
    assert shown["config"]["job"]["nproc_per_node"] == 2


def test_flags_place_a_rank(fullshard):
    process = fullshard.engine("show").start(
        "train", "--job.rank", "1", "--job.world_size", "2", "--job.master_addr", "127.0.0.1",
        "--job.master_port", "29500")  # fmt: skip
    process.communicate(timeout=60)
    shown = fullshard.shown("alone")
    assert shown["pid"] == process.pid
    assert shown["config"]["job"]["rank"] == 1
    answer = fullshard.run("train", "--job.rank", "1")
    assert answer.returncode == 2
    assert "--job.rank is set but WORLD_SIZE is not" in answer.stderr


def test_threads_as_ranks_are_refused_under_a_launcher(fullshard):
    answer = fullshard.run("train", "--comm.backend", "local", RANK="0", WORLD_SIZE="1")
    assert answer.returncode == 2
    assert "comm.backend is local" in answer.stderr


def test_M1_a_busy_port_is_named(fullshard):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        answer = fullshard.engine("show").run("train", "--job.nproc_per_node", "2",
                                              "--job.master_port", str(port))
    assert answer.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in answer.stderr
    assert not (fullshard.folder / "0.json").exists()


def test_C5_a_ranks_error_ends_all_and_comes_first(fullshard):
    answer = fullshard.engine("fail 2 bad sample 17").run("train", "--job.nproc_per_node", "4")
    assert answer.returncode == 1
    assert answer.stderr.startswith("fullshard: rank 2 failed: bad sample 17 (")
    assert answer.stderr.count("\n") == 1


def test_an_error_without_a_launcher_is_printed_once(fullshard):
    answer = fullshard.engine("fail alone disk is full").run("train", "--job.nproc_per_node", "1")
    assert answer.returncode == 1
    assert answer.stderr == "fullshard: disk is full\n"


def test_only_rank_zero_speaks(fullshard):
    answer = fullshard.engine("talk").run("train", "--job.nproc_per_node", "2")
    assert answer.stdout == "out 0\n"
    assert sorted(answer.stderr.splitlines()) == ["[rank 1] err 1", "err 0"]


def test_rank_zero_keeps_the_terminal(fullshard):
    console = pexpect.spawn(fullshard.binary, ["train", "--job.nproc_per_node", "2"],
                            env=fullshard.engine("show").environment, timeout=60)
    console.expect(pexpect.EOF)
    console.wait()
    assert fullshard.shown(0)["stdout_is_terminal"] is True
    assert fullshard.shown(1)["stdout_is_terminal"] is False
    fullshard.run("train", "--job.nproc_per_node", "2")
    assert fullshard.shown(0)["stdout_is_terminal"] is False


def test_ctrl_c_on_the_terminal_stops_all_ranks(fullshard):
    console = pexpect.spawn(fullshard.binary, ["train", "--job.nproc_per_node", "3",
                                               "--training.global_batch_size", "33"],
                            env=fullshard.engine("wait").environment, timeout=60, encoding="utf-8")
    pids = fullshard.pids_when_ready(range(3))
    console.sendintr()
    console.expect("fullshard: stopped by SIGINT")
    console.expect(pexpect.EOF)
    console.close()
    assert console.exitstatus == 130
    assert all(gone(pid) for pid in pids)


def test_term_stops_all_ranks(fullshard):
    process = fullshard.engine("wait").start("train", "--job.nproc_per_node", "2")
    pids = fullshard.pids_when_ready(range(2))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors == "fullshard: stopped by SIGTERM\n"
    assert all(gone(pid) for pid in pids)


def test_a_killed_rank_is_named(fullshard):
    process = fullshard.engine("wait").start("train", "--job.nproc_per_node", "2")
    pids = fullshard.pids_when_ready(range(2))
    os.kill(pids[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("fullshard: rank 1 was killed by SIGKILL (")
    assert all(gone(pid) for pid in pids)


def test_a_killed_launcher_takes_its_ranks_along(fullshard):
    process = fullshard.engine("wait").start("train", "--job.nproc_per_node", "2")
    pids = fullshard.pids_when_ready(range(2))
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: all(gone(pid) for pid in pids), "ranks to end")


def test_a_missing_engine_is_explained(fullshard):
    lonely = fullshard.folder / "bin" / "fullshard"
    lonely.parent.mkdir()
    shutil.copy(fullshard.binary, lonely)
    fullshard.binary = str(lonely)
    answer = fullshard.run("train", "--job.nproc_per_node", "1")
    assert answer.returncode == 1
    assert answer.stderr == (f"fullshard: cannot find libfullshard.so in {fullshard.folder}/lib or "
                             f"{fullshard.folder}/bin; build or install the engine there\n")
    (fullshard.folder / "lib").mkdir()
    (fullshard.folder / "lib" / "libfullshard.so").write_text("no library")
    answer = fullshard.run("train", "--job.nproc_per_node", "1")
    assert answer.returncode == 1
    assert "cannot load libfullshard.so" in answer.stderr
