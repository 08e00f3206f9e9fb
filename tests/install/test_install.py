"""The installed package: moved to another place, found by find_package, built against and run."""

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FULLSHARD_BUILD", ROOT / "build" / "release"))
CONSUMER = ROOT / "examples" / "cmake_project"
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run(*command, **options):
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def cached(variable):
    text = (BUILD / "CMakeCache.txt").read_text()
    return re.search(rf"^{variable}:\w+=(.*)$", text, re.MULTILINE)[1]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**variables):
    plain = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    return {**plain, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in variables.items()}}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An installation that was moved after it was made, so nothing may depend on where it was put."""
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", BUILD, "--prefix", folder / "first")
    (folder / "first").rename(folder / "moved")
    return folder / "moved"


@pytest.fixture(scope="module")
def consumer(prefix, tmp_path_factory):
    build = tmp_path_factory.mktemp("consumer")
    run(
        "cmake", "-G", "Ninja", "-S", CONSUMER, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}",
    )  # fmt: skip
    run("cmake", "--build", build)
    return build / "train_quadrants"


def losses(output):
    return [float(number) for number in re.findall(r"\d+\.\d+", output)]


def test_installed_executable_runs(prefix):
    assert "train" in run(prefix / "bin" / "fullshard", "--help")


def test_gpu_plugin_is_installed_where_it_was_built_and_finds_its_libraries(prefix):
    plugin = prefix / "lib" / "libfullshard_cuda.so"
    assert plugin.exists() == (BUILD / "lib" / plugin.name).exists()
    if plugin.exists():
        load = f"import ctypes; ctypes.CDLL({str(plugin)!r}).fullshard_cuda_plugin"
        run("/usr/bin/python3", "-c", load)


def test_consumer_trains_alone(consumer):
    before, after = losses(run(consumer, env=environment()))
    assert before > 0.6
    assert after < 0.1


def test_consumer_trains_the_same_on_two_ranks(consumer):
    port = free_port()
    ranks = [
        subprocess.Popen(
            [consumer],
            env=environment(
                RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2,
                MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    alone = losses(run(consumer, env=environment()))
    assert losses(outputs[0]) == pytest.approx(alone, abs=1e-3)
    assert outputs[1] == ""
