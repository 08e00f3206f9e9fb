#include "cli/help.h"

#include "fullshard/bench/step_bench.h"
#include "fullshard/config/render.h"

namespace fullshard::cli {

std::string main_help() {
  return R"(Usage: fullshard COMMAND [ARGUMENT...]

Fully sharded data-parallel training.

Commands:
  train    train a language model on text, sharded over the ranks of this host
  bench    measure this build against others
  plan     choose how to shard a model over machines, with memory and time, without running it
  doctor   find out why a job stands still

Options:
  -h, --help    show this, or after a command that command's help
  --version     show the version

Exit codes: 0 done, 1 failed, 2 the command line or configuration is wrong, 130 stopped by Ctrl-C.
)";
}

std::string train_help() {
  return R"(Usage: fullshard train [CONFIG.toml] [--SECTION.FIELD VALUE...]

Trains a GPT on text. Without arguments: on the King James Bible, over all cores of this host, in
about a minute. Started by a launcher that sets RANK and WORLD_SIZE (torchrun), it is one rank of
that job; otherwise it starts its own ranks.

Options:
  -h, --help         show this
  --print-config     show the configuration in force as TOML, and stop
  --help-markdown    show the fields below as Markdown tables, and stop

Each field can be set in the file, as FIELD = value under [SECTION], and by its flag, which wins.
A flag's list is comma-separated: --optimizer.no_decay '*.bias,*norm*'.
)" + config::flag_help();
}

std::string bench_help() {
  return R"(Usage: fullshard bench BENCHMARK [OPTION...]

Benchmarks:
  step           the training step, sharded against plain training and against a peer
  collectives    shared memory against Gloo, and against a memory copy

'fullshard bench BENCHMARK --help' lists its options.
)";
}

std::string bench_step_help() {
  return R"(Usage: fullshard bench step [OPTION...]

Measures training steps of a model, in rounds. Each round runs, one after another: plain training,
unsharded in one process with all threads on the whole global batch; the same sharded; and, with
--peer, a program to compare with. Losses and gradients of plain and sharded training are compared,
and nothing is reported unless they agree.

Model:
  --model NAME    gpt, with a tied head; resnet, on images; bert, which learns masked tokens; vit,
                  on images; default gpt. A resnet normalises by the statistics of each rank's own
                  images; plain training does so too, with the images of each rank in turn
  --shape NAME    of a gpt     a: GPT-2 124M, sequences of 256 tokens, 2 a rank; b: the same, 128,
                               1 a rank; c (default): 10.8M parameters, 256, 4 a rank
                  of a resnet  18 (default): ResNet-18, 10 classes, 32 x 32 pixels, 16 a rank;
                               50: ResNet-50, 1,000 classes, 224 x 224, 4 a rank
                  of a bert    small (default): 6 layers of width 384, 128 tokens, 4 a rank;
                               base: BERT-base, 128, 4 a rank
                  of a vit     small (default): 6 layers of width 384, 100 classes, 64 x 64 pixels
                               in patches of 8, 8 a rank; base: ViT-B/16, 224 x 224, 2 a rank
  --layers N, --dim N, --heads N, --vocab N, --seq N, --image N, --patch N, --classes N, --batch N
                  override one size of it, if the model has it; --batch is sequences or images a
                  rank, --layers of a resnet 18, 34 or 50

Job:
  --ranks N               ranks of the sharded training; default 2
  --threads-per-rank N    computing threads of each; default 1
  --one-rank              one rank with one thread, against plain training with one thread
  --strategy NAME         FULL_SHARD, SHARD_GRAD_OP, SHARD_OPTIMIZER_ONLY or NO_SHARD;
                          default FULL_SHARD
  --units LIST            what is gathered at once: automatic, blocks (each layer), whole (all of
                          the model), or a number of parameters that a unit has at least; default
                          automatic
  --atoms LIST            where parameters may be cut between ranks: element (anywhere), row,
                          parameter or unit (each whole on one rank), heads (attention between
                          groups of 4, MLPs by rows and columns); default element
                          Of several, comma-separated, each is measured, and the tables compare
                          the first of both lists with the others
  --recompute N           activation checkpointing of every N-th layer of a gpt, of 1 all, in
                          plain and sharded training (not in a peer); default 0, of none

Measurement:
  --pairs N       rounds; default 5
  --steps N       steps of a run, the first of which warms up; default 6
  --no-memory     leave out one run of 3 steps of each in which memory is sampled every 20 ms
  --json FILE     write everything that was measured, with facts about the machine

Peer:
  --peer SCRIPT           Python script, run by torch.distributed.run as one process a rank, with
                          --mode, --layers, --dim, --heads, --vocab, --seq, --batch and --steps
                          (of another model than gpt --model and its sizes instead);
                          prints a line of JSON with tok_s, step_s and loss
  --peer-python PYTHON    the Python to run it with
  --peer-modes LIST       comma-separated; default fsdp2,fsdp1,ddp. 'single' is run as one process
                          on the whole global batch

)" + bench::step_columns_help();
}

std::string bench_collectives_help() {
  return R"(Usage: fullshard bench collectives [OPTION...]

Measures collectives of fp32 elements between the ranks of one host, over shared memory and over
Gloo in turn, each run as processes of their own; results are checked.

  --ranks N            ranks; default 2
  --operations LIST    comma-separated, of
                         copy               a memory copy on all ranks at once, to compare with
                         barrier
                         gather_in_place    what sharded training does with parameters and
                         reduce_in_place    gradients, which lie where all ranks see them (shm)
                         all_gather, all_reduce, reduce_scatter, broadcast
                                            between buffers of the ranks' own
                       default all
  --sizes LIST         bytes of the whole; default 65536,1048576,8388608,67108864
  --rounds N           rounds, each of one run over shared memory and one over Gloo; default 5
  --json FILE          write everything that was measured
)";
}

std::string plan_help() {
  return R"(Usage: fullshard plan [CONFIG.toml] [--SECTION.FIELD VALUE...] [OPTION...]

Says how a transformer is best trained on given machines: strategy, units, recomputation, what each
rank and host needs of memory, and how long a step takes; and which configuration that is. Nothing is
run. Formulas and how far measurements are from them: docs/planning.md.

Without --model it is about the model that 'fullshard train' would train with this configuration
(see 'fullshard train --help' for the fields), and its batch.

Model:
  --model NAME        gpt2-124m, gpt2-355m, gpt2-774m, gpt2-xl; vit-b16, vit-l16; or bench-a, bench-b,
                      bench-c, what 'fullshard bench step' trains
  --layers N, --dim N, --heads N, --seq N, --mlp-ratio N
                      override one size of it; --mlp-ratio is the width inside an MLP, in --dim
  --vocab N           tokens of a decoder, classes of an encoder
  --kind KIND         decoder (a causal language model) or encoder (a vision transformer)
  --patch N           side of an encoder's patches in pixels; default 16
  --untied            the head has a table of its own
  --batch N           sequences of a rank in one forward; default: the configuration's, or with
                      --model 1 (bench-a 2, bench-c 4)
  --micro-batches N   forwards of a rank in one step; default: the configuration's, or 1
  --precision NAME    fp32, bf16 (with fp32 masters) or fp64; default: the configuration's, or fp32

Machines; what is not given is assumed, and the report says so:
  --hosts N                  default 1
  --ranks-per-host N         default job.nproc_per_node, or 8
  --threads-per-rank N       default job.threads_per_rank, or 1
  --memory-per-host SIZE     what the job may use, such as 24GiB; default 64GiB
  --memory-per-rank SIZE     the same for each rank
  --flops NUMBER             GFLOP/s of a rank in training; default 50 for each thread
  --host-bandwidth NUMBER    GB/s of memory that all ranks of a host have together; default 25
  --network-bandwidth NUMBER GB/s that a host sends to others; default 1.25
  --network-latency NUMBER   microseconds from a host to another; default 50
  --measured FILE            take --flops and --host-bandwidth from what 'fullshard bench step --json'
                             has measured

What to consider, comma-separated; default all:
  --strategy LIST     FULL_SHARD, SHARD_GRAD_OP, SHARD_OPTIMIZER_ONLY, NO_SHARD; on several hosts
                      HYBRID_SHARD (each holds all parameters) and HYBRID_SHARD_DIVIDED (with
                      shard_optimizer_over_replicas)
  --units LIST        what is gathered at once: halves (attention, MLP), blocks, a number of blocks,
                      or whole (all of the model)
  --atoms LIST        where parameters may be cut: element (anywhere), heads (between groups of 4 to 8
                      attention heads, and hidden features of MLPs)
  --recompute WHEN    blocks computed again in backward: off, on, auto; default auto

Output:
  --rows N       strategies shown; default 12
  --json FILE    write everything, all ways to train included
  -h, --help     show this

Exit codes: 0 something fits, 1 nothing does (it says what takes the memory and what would help), 2 the
command line or configuration is wrong.
)";
}

std::string doctor_help() {
  return R"(Usage: fullshard doctor COMMAND [ARGUMENT...]

Commands:
  trace    line up what the ranks of a job did last, and say where they part

'fullshard doctor COMMAND --help' lists its options.
)";
}

std::string doctor_trace_help() {
  return R"(Usage: fullshard doctor trace FILE... [--json]

Reads the flight records of a job's ranks, lines them up by group and number of the operation, and
says which operation is the last that all finished, who is in which operation now, who is missing,
and who made a different call. A folder stands for the flight_rank*.json in it.

Each rank writes its record, flight_rank<rank>.json, to the folder comm.trace_folder when it loses
another rank (a timeout, an end, an error, calls that differ), and whenever it gets SIGUSR2, also
while it stands still: 'kill -USR2 PID' of the process that was started as 'fullshard train'
reaches all ranks of this host.

Options:
  --json        the same as JSON
  -h, --help    show this
)";
}

std::string version_line() { return "fullshard " FULLSHARD_VERSION "\n"; }

}  // namespace fullshard::cli
