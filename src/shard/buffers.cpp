#include "shard/buffers.h"

#include <cstdint>

namespace fullshard::shard {

at::Tensor values_of_rank0(comm::Group& group, const NamedTensor& named) {
  at::Tensor values = named.tensor.detach().clone(at::MemoryFormat::Contiguous);
  const comm::Buffer bytes{values.mutable_data_ptr(), static_cast<std::int64_t>(values.nbytes()),
                           base::DType::kUInt8};
  group.broadcast(bytes, 0, {named.name, 0}).wait();
  return values;
}

}  // namespace fullshard::shard
