#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fullshard::shard {

/// A module of the model with its dotted name; the root's name is empty.
struct NamedModule {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
};

/// Picks the modules that become units. Parameters outside every picked module form the root unit;
/// a picked module inside another one is a unit of its own.
using WrapPolicy = std::function<std::vector<NamedModule>(const NamedModule& root)>;

/// The root and every module under it, parents before children, each module once.
std::vector<NamedModule> all_modules(const NamedModule& root);

/// Every module for which `matches` holds, except the root.
WrapPolicy wrap_where(std::function<bool(const torch::nn::Module&)> matches);

/// Every module of one of the given classes, for instance wrap_modules<BlockImpl>().
template <typename... Modules>
WrapPolicy wrap_modules() {
  return wrap_where([](const torch::nn::Module& module) {
    return (... || (dynamic_cast<const Modules*>(&module) != nullptr));
  });
}

/// Bottom up, every module whose parameters outside already picked modules number at least
/// `min_params` elements.
WrapPolicy size_based(std::int64_t min_params);

/// The members of every list of layers (ModuleList or Sequential with at least two members that
/// hold parameters); for a model without such a list, size_based with an eighth of the model.
WrapPolicy automatic();

/// No unit but the root: everything is gathered at once. For tests and very small models.
WrapPolicy root_only();

}  // namespace fullshard::shard
