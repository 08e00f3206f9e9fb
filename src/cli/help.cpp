#include "cli/help.h"

#include "fullshard/config/render.h"

namespace fullshard::cli {

std::string main_help() {
  return R"(Usage: fullshard COMMAND [ARGUMENT...]

Fully sharded data-parallel training.

Commands:
  train    train a language model on text, sharded over the ranks of this host

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
  --print-config     show the effective configuration as TOML, and stop
  --help-markdown    show the fields below as Markdown tables, and stop

Each field can be set in the file, as FIELD = value under [SECTION], and by its flag, which wins.
A flag's list is comma-separated: --optimizer.no_decay '*.bias,*norm*'.
)" + config::flag_help();
}

std::string version_line() { return "fullshard " FULLSHARD_VERSION "\n"; }

}  // namespace fullshard::cli
