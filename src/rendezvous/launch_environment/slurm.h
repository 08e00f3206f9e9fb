#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/launch_environment/variables.h"

namespace fullshard::rendezvous {

/// The hosts of one of Slurm's node lists, in its order: "node[01-03,7],other" is node01, node02,
/// node03, node7 and other; several brackets in a name multiply. Throws kConfiguration naming
/// `variable` and the place that cannot be read.
std::vector<std::string> expand_node_list(std::string_view list, std::string_view variable);

/// Tasks by node of Slurm's short form: "2(x3),1" is 2, 2, 2 and 1. Throws like expand_node_list.
std::vector<int> expand_task_counts(std::string_view counts, std::string_view variable);

/// What srun says of this task; nothing outside srun, and nothing in a step of one task, which may
/// start ranks of its own.
Findings from_slurm(const Variables& variables);

}  // namespace fullshard::rendezvous
