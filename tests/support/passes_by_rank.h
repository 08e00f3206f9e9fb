#pragma once

#include "support/equality.h"

namespace fullshard::testing {

/// `model.loss(x, y).backward()`. With `by_rank`, as where statistics are each rank's own, the
/// unsharded run computes what every one of `ranks` ranks would, one after another.
inline Passes passes_by_rank(bool by_rank, int ranks) {
  return [=](Model& model, const Batch& batch, const Turn& turn) {
    const int parts = by_rank && turn.size == 1 ? ranks : 1;
    for (int part = 0; part < parts; ++part) {
      const Batch rows = rows_of_rank(batch, part, parts);
      (model.loss(rows.x, rows.y) / parts).backward();
    }
  };
}

}  // namespace fullshard::testing
