"""Files, flags, and the printed configuration."""

import pytest


def printed(fullshard, *arguments):
    answer = fullshard.run("train", *arguments, "--print-config")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def complaint(fullshard, *arguments):
    answer = fullshard.run("train", *arguments)
    assert answer.returncode == 2
    assert answer.stderr.startswith("fullshard: ")
    return answer.stderr[len("fullshard: "):].rstrip("\n")


def test_printed_configuration_gives_itself_back(fullshard):
    text = printed(fullshard, "--optimizer.lr", "0.1", "--data.path", 'a "b"\\ü', "--training.seed",
                   "9007199254740993", "--optimizer.eps", "3e-17", "--optimizer.no_decay", "a,b",
                   "--validation.enable", "false", "--training.dtype", "float64")
    assert "lr = 0.1  #" in text
    assert "seed = 9007199254740993  #" in text
    assert 'no_decay = ["a", "b"]  #' in text
    fullshard.write("printed.toml", text)
    assert printed(fullshard, "printed.toml") == text


def test_printed_configuration_is_the_one_in_force(fullshard):
    text = printed(fullshard, "--job.nproc_per_node", "3", "--training.global_batch_size", "36")
    assert "nproc_per_node = 3  #" in text
    assert "threads_per_rank = 0  #" not in text
    assert "nproc_per_node = 0  #" not in printed(fullshard)
    text = fullshard.run("train", "--print-config", OMP_NUM_THREADS="5").stdout
    assert "threads_per_rank = 5  #" in text


def test_flags_win_over_the_file_and_the_last_flag_over_earlier_ones(fullshard):
    fullshard.write("run.toml", "[training]\nsteps = 5\nseed = 6\n")
    text = printed(fullshard, "run.toml", "--training.steps", "7", "--training.steps=8")
    assert "steps = 8  #" in text
    assert "seed = 6  #" in text


def test_the_file_may_stand_anywhere_among_the_flags(fullshard):
    fullshard.write("run.toml", "[training]\nsteps = 5\n")
    text = printed(fullshard, "--training.seed", "6", "run.toml")
    assert "steps = 5  #" in text and "seed = 6  #" in text


def test_values_may_be_empty_or_begin_with_dashes(fullshard):
    text = printed(fullshard, "--generation.prompt", "--", "--data.path", "")
    assert 'prompt = "--"  #' in text
    assert 'path = ""  #' in text


def test_an_unknown_key_names_file_line_key_and_the_nearest(fullshard):
    fullshard.write("run.toml", "# first\n[training]\nstep = 5\n")
    assert complaint(fullshard, "run.toml") == (
        "run.toml:3: unknown key 'training.step'; the nearest known one is 'training.steps'")


def test_a_wrong_type_names_file_line_key_found_and_expected(fullshard):
    fullshard.write("run.toml", '[training]\nsteps = "many"\n')
    assert complaint(fullshard, "run.toml") == (
        'run.toml:2: training.steps: found text "many"; expected an integer, 1 or more')


def test_every_fault_of_a_file_is_listed(fullshard):
    fullshard.write("run.toml", "[training]\nstep = 5\nseed = -1\n[nothing]\n")
    lines = complaint(fullshard, "run.toml").splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "3", "4"]


def test_broken_toml_and_missing_files_are_named(fullshard):
    fullshard.write("run.toml", "[training\n")
    assert complaint(fullshard, "run.toml").startswith("run.toml:1: not valid TOML")
    assert complaint(fullshard, "absent.toml").startswith("absent.toml: cannot read")


@pytest.mark.parametrize("flags, expected", [
    (("--training.steps", "1.5"),
     '--training.steps: found text "1.5"; expected an integer, 1 or more'),
    (("--training.steps", "0"), "--training.steps: found integer 0; expected an integer, 1 or more"),
    (("--comm.backend", "shn"), '--comm.backend: found text "shn"; expected one of auto, shm, '
                                "gloo, local; did you mean shm?"),
    (("--model.dim", "130"),
     "model.dim (130) must be a multiple of model.n_heads (4); use 128 or 132"),
    (("--job.nproc_per_node", "3", "--training.global_batch_size", "32"),
     "training.global_batch_size (32) must be a multiple of 3 ranks x "
     "training.gradient_accumulation_steps (1) = 3; use 30 or 33"),
])
def test_wrong_values_are_refused_before_anything_starts(fullshard, flags, expected):
    assert complaint(fullshard, *flags) == expected
    assert complaint(fullshard, *flags, "--print-config") == expected
