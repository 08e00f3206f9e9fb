#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace c10 {
struct IValue;
}

namespace fullshard::residency {

/// Does the work of aten::embedding, whose `arguments` arguments end `stack`, where it pays that
/// the table's gradient lists the rows that were read instead of holding the whole table: where
/// those are a small part. Otherwise returns false and changes nothing.
///
/// A table that is also the model's head (tied) gets two gradients, which autograd adds; a sparse
/// one saves it a pass over a whole table of zeros. It is dense as ever where code could tell the
/// difference: with create_graph, torch::autograd::grad, or a hook on the table.
/// `make_present` is called before the table is read, if it is.
bool embed_with_sparse_gradient(std::size_t arguments, std::vector<c10::IValue>& stack,
                                const std::function<void()>& make_present);

}  // namespace fullshard::residency
