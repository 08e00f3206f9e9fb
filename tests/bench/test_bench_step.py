"""`fullshard bench step` as a whole, with the real engine on a model that trains in no time."""

import json
import re

import pytest

TINY = ["--layers", "2", "--dim", "32", "--heads", "2", "--vocab", "64", "--seq", "16", "--batch", "2",
        "--pairs", "2", "--steps", "3"]


def of_name(report, name):
    return next(c for c in report["contenders"] if c["name"] == name)


def test_measures_plain_sharded_and_a_peer_in_one_go(bench):
    peer = bench.add_peer()
    done = bench.run(*TINY, *peer, "--peer-modes", "fsdp2", "--json", "all.json")
    assert done.returncode == 0, done.stderr
    assert "shape c, changed" in done.stdout
    assert re.search(r"^  plain +\d+\.\d+ x ", done.stdout, re.M)
    assert re.search(r"^  peer fsdp2 +\d+\.\d+ x ", done.stdout, re.M)
    assert len(re.findall(r"^\[\d/9\] ", done.stderr, re.M)) == 9

    report = json.loads((bench.folder / "all.json").read_text())
    assert report["command_line"][1:3] == ["bench", "step"]
    assert report["largest_relative_difference"] < 1e-4
    assert [c["name"] for c in report["contenders"]] == ["plain", "sharded", "peer fsdp2"]
    assert of_name(report, "peer fsdp2")["tokens_per_second"]["median"] == 128
    for contender in report["contenders"]:
        assert len(contender["runs"]) == 2
        assert contender["memory"]["above_base_bytes"] > 0
        for run in contender["runs"]:
            assert run["step_s"] > 0 and run["fwd"] > 0 and run["bwd"] > 0 and run["opt"] > 0


def test_plain_and_sharded_see_the_same_data_and_start_from_the_same_values(bench):
    done = bench.run(*TINY, "--no-memory", "--ranks", "3", "--strategy", "NO_SHARD", "--json", "all.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((bench.folder / "all.json").read_text())
    plain, sharded = (of_name(report, name)["runs"][0]["details"] for name in ("plain", "sharded"))
    assert sharded["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert sharded["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-5)
    assert len(set(plain["losses"])) == 3, "the loss does not move: nothing is trained"
    parameters = 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32 + (64 + 16) * 32
    assert plain["parameters"] == sharded["parameters"] == parameters


def test_counters_are_those_of_the_sharded_run(bench):
    done = bench.run(*TINY, "--no-memory", "--json", "all.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((bench.folder / "all.json").read_text())
    assert "counters" not in of_name(report, "plain")["runs"][0]["details"]
    counters = of_name(report, "sharded")["runs"][0]["details"]["counters"]
    whole = 4 * of_name(report, "plain")["runs"][0]["details"]["parameters"]
    assert 0 < counters["peak_unsharded_bytes"] < whole
    assert counters["peak_unreduced_gradient_bytes"] > 0
    assert 0 < counters["exposed_s"] < of_name(report, "sharded")["runs"][0]["step_s"]


def test_granularities_of_sharding_are_contenders(bench):
    done = bench.run(*TINY, "--no-memory", "--units", "blocks,whole,1000", "--atoms", "element,row,parameter,unit",
                     "--json", "all.json")
    assert done.returncode == 0, done.stderr
    assert "units blocks, atoms element" in done.stdout
    report = json.loads((bench.folder / "all.json").read_text())
    names = ["plain", "sharded", "units whole", "units 1000", "atoms row", "atoms parameter", "atoms unit"]
    assert report["options"]["spec"]["units"] == "blocks"
    assert [c["name"] for c in report["contenders"]] == names
    details = {name: of_name(report, name)["runs"][0]["details"] for name in names}
    gathered = {name: details[name]["counters"]["peak_unsharded_bytes"] for name in names[1:]}
    assert gathered["units whole"] >= 4 * details["plain"]["parameters"] > gathered["sharded"]
    assert gathered["units 1000"] < gathered["sharded"] == gathered["atoms unit"]
    assert report["largest_relative_difference"] < 1e-4
    assert list(report["sharded_speed_against"]) == [name for name in names if name != "sharded"]


MODELS = {
    "resnet": ["--image", "16", "--classes", "4", "--batch", "8"],
    "bert": TINY[:12],
    "vit": ["--layers", "2", "--dim", "32", "--heads", "2", "--image", "8", "--patch", "4", "--classes", "4",
            "--batch", "2"],
}


@pytest.mark.parametrize("model", MODELS)
def test_other_models_train_equal_in_every_granularity(bench, model):
    atoms = "row,unit,element" + ("" if model == "resnet" else ",heads")
    done = bench.run("--model", model, *MODELS[model], "--no-memory", "--pairs", "1", "--steps", "3",
                     "--atoms", atoms, "--units", "automatic,5000", "--json", "all.json")
    assert done.returncode == 0, done.stderr
    assert f"Training step, {model}, shape " in done.stdout
    report = json.loads((bench.folder / "all.json").read_text())
    assert report["largest_relative_difference"] < 1e-4
    assert len(set(of_name(report, "plain")["runs"][0]["details"]["losses"])) == 3, "nothing is trained"
    for contender in report["contenders"][1:]:
        counters = contender["runs"][0]["details"]["counters"]
        assert len(counters["owned_bytes"]) == 2
        assert contender["owned_most_of_mean"] >= 1
    assert of_name(report, "atoms unit")["owned_most_of_mean"] > of_name(report, "atoms element")["owned_most_of_mean"]


def test_a_size_that_the_model_lacks_is_an_error(bench):
    done = bench.run("--model", "resnet", "--seq", "16")
    assert done.returncode == 2
    assert "--seq: the model resnet has no such size" in done.stderr


def test_a_granularity_given_twice_is_an_error(bench):
    done = bench.run(*TINY, "--units", "blocks,whole,blocks")
    assert done.returncode == 2
    assert "twice" in done.stderr


def test_one_rank_is_compared_with_one_thread(bench):
    done = bench.run(*TINY, "--no-memory", "--one-rank")
    assert done.returncode == 0, done.stderr
    assert "1 rank x 1 thread" in done.stdout


def test_a_peer_that_fails_is_shown_with_what_it_said(bench):
    peer = bench.add_peer()
    done = bench.run(*TINY, *peer, "--peer-modes", "broken", "--no-memory")
    assert done.returncode == 1
    assert "'peer broken' ended with exit code 1" in done.stderr
    assert "the process group could not be made" in done.stderr
    assert done.stdout == ""
