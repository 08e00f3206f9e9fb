#include "shard/advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "fullshard/base/log.h"
#include "fullshard/base/text.h"
#include "shard/engine.h"

namespace fullshard::shard {
namespace {

bool could_be_divided(const Engine& engine) {
  const auto modules = all_modules({"", engine.module()});
  return std::count_if(modules.begin(), modules.end(), [](const NamedModule& module) {
           return !module.module->parameters(/*recurse=*/false).empty();
         }) > 1;
}

}  // namespace

void warn_if_one_unit(const Engine& engine) {
  const bool sharded = !engine.replicated() && engine.group().size() > 1;
  if (!sharded || engine.group().rank() != 0) return;
  if (engine.units().size() != 1 || !could_be_divided(engine)) return;
  base::warn(fmt::format(
      "the whole model is one unit, so all of its {} are gathered at once and sharding saves no "
      "memory in forward and backward; set auto_wrap_policy to automatic(), or to "
      "wrap_modules<YourBlockImpl>() with the class of the model's repeated layer",
      base::format_bytes(engine.units().front().layout.flat_bytes())));
}

}  // namespace fullshard::shard
