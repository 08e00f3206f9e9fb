"""`fullshard plan`: no engine, no run, an answer at once."""

import json
import time

import pytest


def test_help_says_every_default(fullshard):
    assert "\n  plan " in fullshard.run("--help").stdout
    text = fullshard.run("plan", "--help").stdout
    for word in ("--hosts N                  default 1", "default 64GiB", "default 50 for each thread",
                 "default 25", "default 1.25", "--recompute", "Exit codes:"):
        assert word in text


def test_without_arguments_plans_the_default_training(fullshard):
    began = time.monotonic()
    answer = fullshard.run("plan")
    assert answer.returncode == 0, answer.stderr
    assert time.monotonic() - began < 10
    assert "636,032 parameters" in answer.stdout
    assert "assumed   --hosts 1, --ranks-per-host 8" in answer.stdout
    assert "--parallelism.sharding_strategy FULL_SHARD" in answer.stdout


def test_a_configuration_is_planned_and_told_how_it_does_now(fullshard):
    fullshard.write("run.toml", "[model]\nn_layers = 5\n[training]\nglobal_batch_size = 16\n"
                                "[parallelism]\nsharding_strategy = \"NO_SHARD\"\n")
    answer = fullshard.run("plan", "run.toml", "--ranks-per-host", "2", "--training.seq_len", "32")
    assert answer.returncode == 0, answer.stderr
    assert "5 blocks of width 128" in answer.stdout
    assert "8 sequences x 1 micro-batch x 2 ranks = 512 tokens" in answer.stdout
    assert "As configured now:\n  NO_SHARD" in answer.stdout


def test_json_has_all_ways(fullshard):
    answer = fullshard.run("plan", "--model", "gpt2-124m", "--hosts", "2", "--ranks-per-host", "4", "--batch", "2",
                           "--json", "plan.json")
    assert answer.returncode == 0, answer.stderr
    plan = json.loads((fullshard.folder / "plan.json").read_text())
    assert plan["fits"] and plan["ways"][0]["fits"]
    assert {way["strategy"] for way in plan["ways"]} == {
        "FULL_SHARD", "SHARD_GRAD_OP", "SHARD_OPTIMIZER_ONLY", "HYBRID_SHARD", "HYBRID_SHARD_DIVIDED", "NO_SHARD"}
    assert plan["job"]["tokens_per_step"] == 2 * 4 * 2 * 1024
    assert plan["heads"]["rules"][0]["pattern"] == "*.attention.qkv.*"


def test_the_settings_it_proposes_are_taken_by_train(fullshard):
    fullshard.run("plan", "--ranks-per-host", "2", "--json", "plan.json")
    fields = json.loads((fullshard.folder / "plan.json").read_text())["train"]["fields"]
    flags = [word for key, value in fields.items() for word in ("--" + key, value)]
    answer = fullshard.run("train", "--print-config", *flags)
    assert answer.returncode == 0, answer.stderr
    assert 'sharding_strategy = "FULL_SHARD"' in answer.stdout


def test_rates_come_from_a_benchmark(fullshard):
    shape = {"layers": 6, "dim": 384, "heads": 6, "vocab": 256, "seq": 256, "batch": 4}
    report = {"machine": {"cpu": "Some CPU"}, "options": {"spec": {"ranks": 2, "threads": 1, "shape": shape}},
              "contenders": [{"name": "sharded", "runs": [{"fwd": 0.2, "bwd": 0.5, "opt": 0.01, "others_share": 0.3,
                                                           "details": {"counters": {"exposed_s": 0.1}}}]}]}
    fullshard.write("c.json", json.dumps(report))
    answer = fullshard.run("plan", "--model", "bench-c", "--ranks-per-host", "2", "--measured", "c.json")
    assert answer.returncode == 0, answer.stderr
    assert "122.1 GFLOP/s a rank, 30.36 GB/s of memory a host; measured: c.json (Some CPU)" in answer.stdout
    assert "other processes took 30 % of the machine" in answer.stdout
    assert "--flops" not in answer.stdout


def test_nothing_fits(fullshard):
    answer = fullshard.run("plan", "--model", "gpt2-xl", "--batch", "4", "--memory-per-host", "16GiB", "--json", "p")
    assert answer.returncode == 1
    assert "nothing fits into 16.00 GiB a host: the least is" in answer.stderr
    assert "activations" in answer.stderr or "models before sharding" in answer.stderr
    assert "hosts:" in answer.stderr and "bf16 with fp32 masters:" in answer.stderr
    assert "none fits" in answer.stdout
    assert json.loads((fullshard.folder / "p").read_text())["remedies"]


@pytest.mark.parametrize("arguments,said", [
    (["--hots", "2"], "unknown option '--hots'; the nearest known one is '--hosts'"),
    (["--model", "gpt5"], "--model: found \"gpt5\"; expected one of gpt2-124m"),
    (["--hosts", "0"], "--hosts: found 0; expected an integer from 1"),
    (["--hosts", "x"], "--hosts = x; expected an integer"),
    (["--flops", "fast"], "--flops: found \"fast\"; expected a number"),
    (["--flops", "-3"], "--flops: found"),
    (["--memory-per-host", "1 parsec"], "--memory-per-host: found \"1 parsec\""),
    (["--strategy", "FULL"], "--strategy: found \"FULL\"; expected one of FULL_SHARD"),
    (["--units", "0"], "--units: found \"0\""),
    (["--atoms", "molecule"], "--atoms: found \"molecule\""),
    (["--recompute", "maybe"], "--recompute: found \"maybe\""),
    (["--model", "bench-a", "--heads", "7"], "--heads: found 7; expected a divisor of --dim 768"),
    (["--ranks-per-host", "7"], "training.global_batch_size (32) must be a multiple of 7 ranks"),
    (["--training.step", "3"], "the nearest known one is '--training.steps'"),
    (["a.toml", "b.toml"], "unexpected argument 'b.toml'"),
    (["--rows", "0"], "--rows: found 0"),
])
def test_misunderstood_command_lines_are_answered(fullshard, arguments, said):
    answer = fullshard.run("plan", *arguments)
    assert answer.returncode == 2, answer.stdout
    assert said in answer.stderr
    assert answer.stdout == ""


def test_files_that_cannot_be_read_or_written_are_named(fullshard):
    assert "cannot read none.json" in fullshard.run("plan", "--measured", "none.json").stderr
    answer = fullshard.run("plan", "--json", "no/folder/plan.json")
    assert answer.returncode == 1
    assert "cannot write no/folder/plan.json" in answer.stderr
