#include "comm/c10d/collectives.h"

namespace fullshard::comm::c10d {
namespace {

using base::DType;
using shared::Parts;

class FlatCollectives final : public Collectives {
 public:
  FlatCollectives(Seat seat, std::size_t chunk) : seat_(seat), chunk_(chunk) {}

  void all_gather(Call call, const void* mine, void* all, const Parts& parts,
                  DType dtype) override {
    c10d::all_gather(call.transfer, seat_, mine, all, parts, dtype);
  }
  void reduce_scatter(Call call, const void* all, void* mine, const Parts& parts, DType dtype,
                      ReduceOp op) override {
    c10d::reduce_scatter(call.transfer, seat_, all, mine, parts, dtype, op, chunk_);
  }
  void all_reduce(Call call, Buffer inout, ReduceOp op) override {
    c10d::all_reduce(call.transfer, seat_, inout, op, chunk_);
  }
  void broadcast(Call call, Buffer inout, int root) override {
    c10d::broadcast(call.transfer, seat_, inout, root);
  }
  void all_to_all(Call call, const void* send, const Parts& send_parts, void* recv,
                  const Parts& recv_parts, DType dtype) override {
    c10d::all_to_all(call.transfer, seat_, send, send_parts, recv, recv_parts, dtype);
  }

 private:
  Seat seat_;
  std::size_t chunk_;
};

}  // namespace

std::unique_ptr<Collectives> make_flat_collectives(Seat seat, std::size_t chunk) {
  return std::make_unique<FlatCollectives>(seat, chunk);
}

}  // namespace fullshard::comm::c10d
