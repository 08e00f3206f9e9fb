#include "shard/buffers.h"

#include "shard/dtype.h"

namespace fullshard::shard {

at::Tensor values_of_rank0(comm::Group& group, const NamedTensor& buffer) {
  at::Tensor values = buffer.tensor.detach().clone(at::MemoryFormat::Contiguous);
  group
      .broadcast(
          {values.mutable_data_ptr(), values.numel(), to_dtype(values.scalar_type(), buffer.name)},
          0, {buffer.name, 0})
      .wait();
  return values;
}

}  // namespace fullshard::shard
