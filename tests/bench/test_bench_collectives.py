"""`fullshard bench collectives` as a whole, with the real engine."""

import json
import re

SMALL = ["--sizes", "4096,65536", "--rounds", "2"]


def run(bench, *arguments):
    return bench.run(*arguments, benchmark="collectives")


def test_measures_both_backends_in_turn(bench):
    done = run(bench, *SMALL, "--operations", "copy,barrier,reduce_in_place,all_gather,reduce_scatter",
               "--json", "all.json")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  barrier +\d", done.stdout, re.M)
    assert re.search(r"^  reduce_scatter +64 KiB +.* %$", done.stdout, re.M)
    report = json.loads((bench.folder / "all.json").read_text())
    cases = {(c["operation"], c["bytes"]): c["seconds"] for c in report["cases"]}
    assert set(cases) == {("barrier", 0)} | {(operation, size) for size in (4096, 65536) for operation in
                                             ("copy", "reduce_in_place", "all_gather", "reduce_scatter")}
    for (operation, _), seconds in cases.items():
        assert set(seconds) == ({"shm"} if operation == "reduce_in_place" else {"shm", "gloo"})
        assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in seconds.values())
    gloo = cases["all_gather", 65536]["gloo"]
    assert min(gloo) > min(cases["all_gather", 65536]["shm"]), "shared memory is slower than TCP"


def test_more_ranks_and_a_size_that_they_do_not_divide(bench):
    done = run(bench, "--ranks", "3", "--rounds", "1", "--sizes", "1000", "--operations",
               "reduce_in_place,gather_in_place,all_reduce,broadcast")
    assert done.returncode == 0, done.stderr
    assert "3 ranks" in done.stdout


def test_bad_options_are_named(bench):
    for flags, words in ((["--ranks", "1"], "--ranks"), (["--operations", "scan"], "scan"),
                         (["--rounds", "0"], "--rounds"), (["--round", "2"], "--rounds")):
        done = run(bench, *flags)
        assert done.returncode == 2
        assert words in done.stderr
