"""Help, and how misunderstood command lines are answered."""

import re
import subprocess

import pytest


def test_help_names_the_commands(fullshard):
    for flag in ("--help", "-h"):
        answer = fullshard.run(flag)
        assert answer.returncode == 0
        assert re.search(r"^  train ", answer.stdout, re.M)
        assert answer.stderr == ""


def test_version(fullshard):
    answer = fullshard.run("--version")
    assert answer.returncode == 0
    assert re.fullmatch(r"fullshard \d+\.\d+\.\d+\n", answer.stdout)


def test_train_help_lists_every_field_with_its_default(fullshard):
    help_text = fullshard.run("train", "--help").stdout
    section = None
    fields = 0
    settled = {"nproc_per_node": "0", "threads_per_rank": "0"}  # printed as the machine has it
    for line in fullshard.run("train", "--print-config").stdout.splitlines():
        if line.startswith("["):
            section = line[1:-1]
            assert f"\n[{section}]\n" in help_text
        elif line:
            name, value = re.match(r"(\S+) = (.*?)  # ", line).groups()
            entry = help_text.split(f"--{section}.{name} VALUE\n")[1].split("\n  --")[0]
            assert f"; default {settled.get(name, value)}\n" in entry + "\n"
            fields += 1
    assert fields > 30


def test_bench_help_lists_benchmarks_options_and_columns(fullshard):
    assert re.search(r"^  step ", fullshard.run("bench", "--help").stdout, re.M)
    help_text = fullshard.run("bench", "step", "--help").stdout
    for option in ("--shape", "--ranks", "--pairs", "--peer-python", "--json"):
        assert re.search(rf"^  {option} ", help_text, re.M)
    assert re.search(r"^  tokens/s +tokens of the global batch", help_text, re.M)


def test_help_wins_over_everything_else(fullshard):
    answer = fullshard.run("train", "--nonsense", "--help", "--training.steps", "x")
    assert answer.returncode == 0
    assert "--training.steps VALUE" in answer.stdout


def test_markdown_lists_every_field(fullshard):
    table = fullshard.run("train", "--help-markdown").stdout
    assert "### [training]" in table
    assert len(re.findall(r"^\| `\w+` \|", table, re.M)) > 30


def test_no_command_that_needs_no_tensors_loads_torch(fullshard):
    libraries = subprocess.run(["ldd", fullshard.binary], capture_output=True, text=True).stdout
    assert "libc.so" in libraries
    assert not re.search("lib(torch|c10|fullshard)", libraries)  # addresses may spell c10


@pytest.mark.parametrize("arguments, expected", [
    ((), "no command given"),
    (("trian",), "unknown command 'trian'; the nearest known one is 'train'"),
    (("xyzzy",), "unknown command 'xyzzy'; see 'fullshard --help'"),
    (("bench",), "no benchmark given; see 'fullshard bench --help'"),
    (("bench", "stap"), "unknown benchmark 'stap'; the nearest known one is 'step'"),
    (("bench", "step", "--layer", "4"), "unknown option '--layer'; the nearest known one is '--layers'"),
    (("bench", "step", "--layers", "x"), "--layers = x; expected an integer"),
    (("bench", "step", "--layers"), "--layers needs a value"),
    (("bench", "step", "--shape", "q"), '--shape: found "q"; expected one of a, b, c'),
    (("bench", "step", "--pairs", "0"), "--pairs: found 0; expected an integer, 1 or more"),
    (("bench", "step", "--peer", "x.py"), "--peer and --peer-python belong together"),
    (("bench", "step", "fast"), "unexpected argument 'fast'; see 'fullshard bench step --help'"),
    (("--hlep",), "unknown option '--hlep'; the nearest known one is '--help'"),
    (("train", "--training.step", "3"),
     "unknown option '--training.step'; the nearest known one is '--training.steps'"),
    (("train", "--training.step=3"),
     "unknown option '--training.step'; the nearest known one is '--training.steps'"),
    (("train", "--lr", "1"), "unknown option '--lr'; the nearest known one is '--optimizer.lr'"),
    (("train", "--print-confg"),
     "unknown option '--print-confg'; the nearest known one is '--print-config'"),
    (("train", "--qqqqqqq.zzzzzzz", "3"), "unknown option '--qqqqqqq.zzzzzzz'"),
    (("train", "-x"), "unknown option '-x'"),
    (("train", "--training.steps"), "--training.steps needs a value"),
    (("train", "--training.steps", "--optimizer.lr", "1"),
     "--training.steps needs a value; found the option '--optimizer.lr' in its place"),
    (("train", "a.toml", "b.toml"),
     "unexpected argument 'b.toml'; the configuration file is already 'a.toml'"),
])
def test_a_wrong_command_line_is_explained(fullshard, arguments, expected):
    answer = fullshard.run(*arguments)
    assert answer.returncode == 2
    assert answer.stderr.startswith("fullshard: " + expected)
    assert answer.stdout == ""
