"""Jobs of several hosts, in network namespaces where those can be made, and over loopback."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hosts import OneHost, make_hosts  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FULLSHARD_BUILD_DIR", ROOT / "build" / "release"))
RANK = BUILD / "tests" / "host_rank"
PATIENT = 120
SHORT = 4


@pytest.fixture(params=["real", "loopback"])
def make(request):
    return make_hosts if request.param == "real" else OneHost


def results(job):
    """What the ranks printed, by rank."""
    found = []
    for process in job.processes:
        out, err = process.communicate(timeout=PATIENT)
        assert process.returncode == 0, out + err
        found.append(json.loads(out.splitlines()[-1]))
    return found


def errors(job, ranks):
    """What the ranks failed with, by rank."""
    found = {}
    for rank in ranks:
        out, err = job.processes[rank].communicate(timeout=PATIENT)
        assert job.processes[rank].returncode == 3, out + err
        found[rank] = json.loads(out.splitlines()[-1])
    return found


def wait_until_going(job):
    for process in job.processes:
        assert process.stdout.readline() == "going\n", process.communicate(timeout=PATIENT)


@pytest.mark.parametrize("places", [[0, 0, 1, 1], [0, 0, 0, 1, 2], [0, 1, 0, 1]])
def test_collectives_send_each_part_to_each_other_host_once(make, places):
    hosts = len(set(places))
    with make(hosts) as these:
        for rank, found in enumerate(results(these.start(RANK, ["collectives", hosts, PATIENT], places))):
            assert found["right"]
            assert found["local_size"] == places.count(places[rank])
            assert found["local_rank"] == places[:rank].count(places[rank])
            assert found["gathered"] == (hosts - 1) * found["whole"]
            assert found["reduced"] == (hosts - 1) * found["whole"]


def test_p7_sharded_inside_hosts_only_shards_cross(make):
    with make(2) as these:
        for found in results(these.start(RANK, ["hybrid", 2, PATIENT], [0, 0, 1, 1])):
            assert found["difference"] <= 1e-10
            assert found["shares_memory"]
            assert found["replicate"] == found["shard_bytes"]
            assert found["all"] == 0


def test_sharded_over_hosts_trains_as_one_process_does(make):
    with make(3) as these:
        for found in results(these.start(RANK, ["full", 3, PATIENT], [0, 0, 1, 2])):
            assert found["difference"] <= 1e-10
            assert found["all"] > 0


def test_a_host_whose_processes_die_is_named(make):
    with make(2) as these:
        job = these.start(RANK, ["forever", 2, PATIENT], [0, 0, 1, 1])
        wait_until_going(job)
        for process in job.on(1):
            process.kill()
        for error in errors(job, [0, 1]).values():
            assert error["error"] == "peer lost" and error["rank"] in (2, 3), error


def test_a_host_that_is_cut_off_is_named_when_the_deadline_passes(make):
    with make(2) as these:
        job = these.start(RANK, ["forever", 2, SHORT], [0, 0, 1, 1])
        wait_until_going(job)
        these.cut(1)
        began = time.monotonic()
        for error in errors(job, [0, 1]).values():
            assert error["error"] in ("timeout", "peer lost") and error["rank"] in (2, 3), error
        assert time.monotonic() - began < 4 * SHORT


def test_an_interface_that_cannot_be_reached_is_an_error(make):
    with make(2) as these:
        where = these.unreachable(1)
        began = time.monotonic()
        job = these.start(RANK, ["collectives", 2, SHORT], [0, 1],
                          lambda rank: where if rank == 1 else {})  # fmt: skip
        for error in errors(job, [0, 1]).values():
            assert error["error"] in ("timeout", "peer lost", "configuration"), error
            if these.kind == "namespaces":
                assert "rank 1 at 10.99.0.1" in error["text"], error
        assert time.monotonic() - began < 3 * SHORT
