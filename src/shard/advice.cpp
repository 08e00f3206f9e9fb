#include "shard/advice.h"

#include <fmt/format.h>

#include "fullshard/base/log.h"
#include "fullshard/base/text.h"
#include "shard/engine.h"

namespace fullshard::shard {
namespace {

bool could_be_divided(const Engine& engine) {
  int holders = 0;
  for_each_node(engine.model().root, [&](const ModelNode& node) {
    if (!node.parameters.empty()) ++holders;
  });
  return holders > 1;
}

}  // namespace

void warn_if_one_unit(const Engine& engine) {
  if (engine.units().size() != 1 || engine.units().front().replicated()) return;
  if (engine.mesh().shard->size() == 1 || engine.mesh().all->rank() != 0) return;
  if (!could_be_divided(engine)) return;
  base::warn(fmt::format(
      "the whole model is one unit, so all of its {} are gathered at once and sharding saves no "
      "memory in forward and backward; set auto_wrap_policy to automatic(), or to "
      "wrap_modules<YourBlockImpl>() with the class of the model's repeated layer",
      base::format_bytes(engine.units().front().layout.flat_bytes())));
}

}  // namespace fullshard::shard
