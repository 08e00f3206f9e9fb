#include "fullshard/shard/communication_hook.h"

#include <ATen/ops/empty.h>

#include <memory>
#include <vector>

#include "fullshard/base/error.h"
#include "shard/dtype.h"

namespace fullshard::shard {
namespace {

comm::Buffer buffer_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr(), tensor.numel(),
          to_dtype(tensor.scalar_type(), "compressed gradients")};
}

struct Compressed {
  at::Tensor whole;
  at::Tensor part;
  at::Tensor out;
  std::shared_ptr<comm::Group> replicate;
  comm::OpTag tag;
  comm::Work work;  // the last member: ends before the tensors do

  void finish() {
    work.wait();
    replicate->all_reduce(buffer_of(part), comm::ReduceOp::kMean, tag).wait();
    out.copy_(part);
  }
};

comm::Work reduce_compressed(const UnitGradients& gradients, at::ScalarType dtype) {
  const auto compressed = std::make_shared<Compressed>();
  compressed->whole = gradients.whole.to(dtype);
  compressed->part = compressed->whole;
  compressed->out = gradients.part;
  compressed->replicate = gradients.mesh.replicate;
  compressed->tag = {gradients.unit, gradients.round};
  comm::Group& shard = *gradients.mesh.shard;
  const comm::Buffer whole = buffer_of(compressed->whole);
  if (gradients.counts.empty()) {
    compressed->work = shard.all_reduce(whole, comm::ReduceOp::kMean, compressed->tag);
  } else {
    compressed->part = at::empty({gradients.part.numel()}, compressed->whole.options());
    compressed->work =
        shard.reduce_scatter(whole, buffer_of(compressed->part), comm::ReduceOp::kMean,
                             gradients.counts, compressed->tag);
  }
  return comm::Work([compressed] { compressed->finish(); },
                    [compressed] { return compressed->work.done(); });
}

}  // namespace

CommunicationHook compress_gradients_to(at::ScalarType dtype) {
  if (!at::isFloatingType(dtype)) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      std::string("compress_gradients_to: gradients cannot travel as ") +
                          at::toString(dtype) + "; choose kBFloat16, kHalf or kFloat");
  }
  return [dtype](const UnitGradients& gradients) { return reduce_compressed(gradients, dtype); };
}

}  // namespace fullshard::shard
