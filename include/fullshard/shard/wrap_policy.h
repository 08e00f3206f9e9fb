#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fullshard/shard/model_tree.h"

namespace fullshard::shard {

/// The modules, by dotted name, that one unit takes: usually one.
using UnitChoice = std::vector<std::string>;

/// Picks the modules that become units. Parameters outside every picked module form the root unit;
/// a picked module inside another one is a unit of its own. A name that is no module is an error.
using WrapPolicy = std::function<std::vector<UnitChoice>(const ModelNode& root)>;

/// Every module for which `matches` holds, except the root.
WrapPolicy wrap_where(std::function<bool(const ModelNode&)> matches);

/// Every module of one of the given classes, for instance wrap_modules<BlockImpl>().
template <typename... Modules>
WrapPolicy wrap_modules() {
  return wrap_where([](const ModelNode& node) {
    return (... || (dynamic_cast<const Modules*>(node.module) != nullptr));
  });
}

/// Every module whose dotted name matches one of the patterns (`*` any run of characters, `?` any
/// one). A pattern that matches no module is an error.
WrapPolicy wrap_named(std::vector<std::string> patterns);

/// Every module of one of the given classes, by name as is_of_class() has it: for models exported
/// from Python, whose classes have names such as "__torch__.model.Block", `Block` is enough. A
/// class of which there is no module is an error.
WrapPolicy wrap_classes(std::vector<std::string> class_names);

/// Bottom up, every module whose parameters outside already picked modules number at least
/// `min_params` elements.
WrapPolicy size_based(std::int64_t min_params);

/// The members of every outermost stack of layers: a ModuleList or Sequential most of which is
/// members of the same class and parameter shapes, such as the encoder and the decoder of T5. An
/// error for a model that has none.
WrapPolicy transformer_blocks();

/// Chosen from structure and sizes (docs/design/units.md): the blocks of stacks of equal layers,
/// what is large beside them, and elsewhere modules of at most a quarter of the model, with small
/// neighbours together.
WrapPolicy automatic();

/// No unit but the root: everything is gathered at once. For tests and very small models.
WrapPolicy root_only();

/// What `base` picks, and each of `groups`, given as module names, as one unit. Modules of a group
/// are taken out of the units that `base` made of them.
WrapPolicy with_groups(WrapPolicy base, std::vector<UnitChoice> groups);

}  // namespace fullshard::shard
