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
SHIM = BUILD / "tests" / "libresolver_shim.so"
PATIENT = 120
SHORT = 4
NEVER = 0


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
        job.stderr.append(err)
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


@pytest.mark.parametrize("places", [[0, 0, 1, 1], [0, 0, 0, 1, 2], [0, 1, 0, 1], [0, 1, 2, 3, 0]])
def test_collectives_send_each_part_to_each_other_host_once(make, places):
    hosts = len(set(places))
    with make(hosts) as these:
        for rank, found in enumerate(results(these.start(RANK, ["collectives", hosts, PATIENT, NEVER], places))):
            assert found["right"]
            assert found["local_size"] == places.count(places[rank])
            assert found["local_rank"] == places[:rank].count(places[rank])
            assert found["gathered"] == (hosts - 1) * found["whole"]
            assert found["reduced"] == (hosts - 1) * found["whole"]


def test_p7_sharded_inside_hosts_only_shards_cross(make):
    with make(2) as these:
        for found in results(these.start(RANK, ["hybrid", 2, PATIENT, NEVER], [0, 0, 1, 1])):
            assert found["difference"] <= 1e-10
            assert found["shares_memory"]
            assert found["replicate"] == found["shard_bytes"]
            assert found["all"] == 0


def test_sharded_over_hosts_trains_as_one_process_does(make):
    with make(3) as these:
        for found in results(these.start(RANK, ["full", 3, PATIENT, NEVER], [0, 0, 1, 2])):
            assert found["difference"] <= 1e-10
            assert found["all"] > 0


def test_a_host_whose_processes_die_is_named(make):
    with make(2) as these:
        job = these.start(RANK, ["forever", 2, PATIENT, NEVER], [0, 0, 1, 1])
        wait_until_going(job)
        for process in job.on(1):
            process.kill()
        for error in errors(job, [0, 1]).values():
            assert error["error"] == "peer lost" and error["rank"] in (2, 3), error


def test_a_host_that_is_cut_off_is_named_when_the_deadline_passes(make):
    with make(2) as these:
        job = these.start(RANK, ["forever", 2, SHORT, NEVER], [0, 0, 1, 1])
        wait_until_going(job)
        these.cut(1)
        began = time.monotonic()
        for error in errors(job, [0, 1]).values():
            assert error["error"] in ("timeout", "peer lost") and error["rank"] in (2, 3), error
        assert time.monotonic() - began < 4 * SHORT


def test_a_host_that_is_cut_off_is_named_by_its_heartbeat(make):
    with make(4) as these:
        job = these.start(RANK, ["forever", 4, PATIENT, SHORT], [0, 1, 2, 3])
        wait_until_going(job)
        these.cut(2)
        began = time.monotonic()
        for error in errors(job, [0, 1, 3]).values():
            assert error["error"] == "peer lost" and error["rank"] == 2, error
        assert time.monotonic() - began < PATIENT / 4


@pytest.mark.parametrize("address", ["127.0.1.1", ""])
def test_m12_a_host_name_on_loopback_or_on_nothing_misleads_nobody(make, address):
    called = {"LD_PRELOAD": str(SHIM), "FULLSHARD_TEST_HOST_NAME": "alpha",
              "FULLSHARD_TEST_HOST_ADDRESS": address}  # fmt: skip
    with make(2) as these:
        for backend in ([], ["gloo"]):
            words = ["collectives", 1, PATIENT, NEVER, *backend]
            one_host = these.start(RANK, words, [0, 0], lambda _: called)
            assert all(found["right"] for found in results(one_host))
            assert all("alpha" not in text for text in one_host.stderr)

        interface = "lo" if these.kind == "loopback" else "eth0"
        named = {**called, "GLOO_SOCKET_IFNAME": interface}
        job = these.start(RANK, ["collectives", 2, PATIENT, NEVER], [0, 1], lambda _: named)
        assert all(found["right"] for found in results(job))
        assert all("alpha" not in text for text in job.stderr)
        if these.kind == "loopback":
            return  # what a rank takes by itself is an address that others could reach
        job = these.start(RANK, ["collectives", 2, PATIENT, NEVER], [0, 1], lambda _: called)
        assert all(found["right"] for found in results(job))
        for rank, text in enumerate(job.stderr):
            assert "alpha resolves to 127.0.1.1" in text if address else "does not resolve" in text
            assert f"uses {these.address(rank)} of eth0" in text


def test_an_interface_that_cannot_be_reached_is_an_error(make):
    with make(2) as these:
        where = these.unreachable(1)
        began = time.monotonic()
        job = these.start(RANK, ["collectives", 2, SHORT, NEVER], [0, 1],
                          lambda rank: where if rank == 1 else {})  # fmt: skip
        for error in errors(job, [0, 1]).values():
            assert error["error"] in ("timeout", "peer lost", "configuration"), error
            if these.kind == "namespaces":
                assert "rank 1 at 10.99.0.1" in error["text"], error
        assert time.monotonic() - began < 3 * SHORT
