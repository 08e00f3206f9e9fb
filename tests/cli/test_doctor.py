"""`fullshard doctor trace` on records as ranks write them."""

import json

import pytest

NOW = 1_700_000_000_000_000


def record(rank, finished, begun=None, unit="norm", world_size=2):
    """A rank that has begun `begun` operations of the world and finished `finished`."""
    begun = finished if begun is None else begun
    entries = []
    for number in range(1, begun + 1):
        entry = {"kind": "collective", "group": 0, "sequence": number, "operation": "all_reduce",
                 "unit": unit if number > finished else "norm", "step": number,
                 "dtype": "float32", "reduction": "sum", "count": 1, "bytes": 4,
                 "began_us": NOW - 5_000_000, "state": "started"}
        if number <= finished:
            entry |= {"ended_us": NOW - 4_000_000, "state": "finished"}
        entries.append(entry)
    return {"format": "fullshard flight record", "version": 1, "rank": rank,
            "world_size": world_size, "host": "node", "pid": 100 + rank, "written_us": NOW,
            "reason": "SIGUSR2", "operations": begun,
            "groups": [{"name": "world", "ranks": list(range(world_size)), "begun": begun,
                        "finished": finished}],
            "boards": [], "entries": entries}


@pytest.fixture
def traces(fullshard):
    def write(*records):
        names = []
        for content in records:
            names.append(f"flight_rank{content['rank']}.json")
            fullshard.write(names[-1], json.dumps(content))
        return names
    return write


def test_help_is_found_at_every_level(fullshard):
    assert "\n  doctor " in fullshard.run("--help").stdout
    assert "\n  trace " in fullshard.run("doctor", "--help").stdout
    help_text = fullshard.run("doctor", "trace", "-h").stdout
    for word in ("--json", "SIGUSR2", "comm.trace_folder"):
        assert word in help_text


def test_the_missing_rank_is_named(fullshard, traces):
    answer = fullshard.run("doctor", "trace", *traces(record(0, 3, 4), record(1, 3)))
    assert answer.returncode == 0
    assert answer.stderr == ""
    assert "rank 0 is in operation #4, all_reduce (sum of 1 float32)" in answer.stdout
    assert "rank 1 has not come" in answer.stdout
    assert "4.0 s ago" in answer.stdout


def test_a_folder_and_json(fullshard, traces):
    traces(record(0, 3, 4, unit="a"), record(1, 3, 4, unit="b"))
    answer = fullshard.run("doctor", "trace", "--json", ".")
    report = json.loads(answer.stdout)
    assert report["groups"][0]["last_common"] == 3
    calls = report["groups"][0]["different"]["calls"]
    assert [call["ranks"] for call in calls] == [[0], [1]]
    assert "made different calls" in report["findings"][0]


def test_ranks_without_a_file_are_named(fullshard, traces):
    answer = fullshard.run("doctor", "trace", *traces(record(0, 3, 4, world_size=3)))
    assert answer.returncode == 0
    assert "There is no record of ranks 1 and 2." in answer.stdout


def test_files_that_cannot_be_read_are_named(fullshard, traces):
    fullshard.write("foreign.json", '{"some": "thing"}')
    fullshard.write("torn.json", json.dumps(record(1, 3))[:200])
    for name in ("foreign.json", "torn.json", "missing.json"):
        answer = fullshard.run("doctor", "trace", *traces(record(0, 1)), name)
        assert answer.returncode == 1
        assert name in answer.stderr
        assert answer.stdout == ""


@pytest.mark.parametrize("arguments,said", [
    ([], "nothing to look at given"),
    (["trace"], "no flight records given"),
    (["trce"], "the nearest known one is 'trace'"),
    (["trace", "--jsn", "a"], "the nearest known one is '--json'"),
])
def test_misunderstood_command_lines_are_answered(fullshard, arguments, said):
    answer = fullshard.run("doctor", *arguments)
    assert answer.returncode == 2
    assert said in answer.stderr
