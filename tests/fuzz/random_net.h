#pragma once

#include <torch/torch.h>

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/random.h"
#include "support/recomputed.h"
#include "support/training.h"

namespace fullshard::fuzz {

/// What a layer is made of. Every layer maps [rows, width] to the same shape.
enum class Kind {
  kLinear,       ///< a matrix and perhaps a bias
  kNorm,         ///< LayerNorm
  kScalar,       ///< a parameter without dimensions
  kEmpty,        ///< a parameter without elements
  kGate,         ///< an odd-sized vector, only some of it used
  kBlock,        ///< modules inside modules: norm, up, down
  kBank,         ///< three dimensions, one slice used at a time
  kTied,         ///< another layer's matrix, transposed, and a bias of its own
  kConvolution,  ///< in one dimension, over channels
  kRecurrent,    ///< a GRU over a few steps
};

struct LayerSpec {
  Kind kind = Kind::kLinear;
  int inner = 1;      ///< hidden width of a block, slices of a bank, size of a gate, channels
  bool bias = true;   ///< kLinear
  int of = 0;         ///< kTied: the kLinear layer whose matrix it shares
  bool twin = false;  ///< registered under a second name as well
};

/// One use of a layer in a forward pass.
struct CallSpec {
  int layer = 0;
  bool residual = false;
  bool recomputed = false;    ///< by a function of the user's that makes a pass inside backward
  bool checkpointed = false;  ///< by recompute::checkpoint
  int period = 1;             ///< taken in passes whose number modulo this is `phase`
  int phase = 0;
  int only_rank = -1;  ///< taken by this rank only, if not negative
};

struct NetSpec {
  int width = 3;
  std::vector<LayerSpec> layers;
  std::vector<CallSpec> calls;
  int region_begin = 0;  ///< the first of the calls in one region for recompute::checkpoint
  int region_end = 0;    ///< behind the last of them
  bool penalty = false;  ///< a loss over all parameters in one operator
  bool slope = false;    ///< a second-order loss: the gradient of the output by the input
  bool cached = false;   ///< a second backward, over a tensor from the middle of the forward
  bool peek = false;     ///< a pass without gradients between forward and backward
};

NetSpec random_net(Random& random, int ranks);
std::string to_string(const NetSpec& spec);

/// Which forward pass this is: counted over the whole run, and of which rank.
struct Pass {
  std::int64_t number = 0;
  int rank = 0;
};

class Layer : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& h, std::int64_t pass) = 0;
};

class Net : public testing::Model {
 public:
  explicit Net(NetSpec spec);

  at::Tensor run(const at::Tensor& x, const Pass& pass);
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y) override;

  /// All forward and backward passes of one micro-batch; losses are multiplied by `scale`.
  void backward(const testing::Batch& batch, const Pass& pass, double scale);

  std::int64_t width() const { return spec_.width; }

 private:
  std::shared_ptr<Layer> make(const LayerSpec& spec) const;
  at::Tensor call_layer(const CallSpec& call, const at::Tensor& h, const Pass& pass);
  at::Tensor run_calls(at::Tensor h, int begin, int end, const Pass& pass);
  at::Tensor all_losses(const at::Tensor& x, const at::Tensor& y, const Pass& pass);

  NetSpec spec_;
  torch::nn::ModuleList layers_;
  torch::nn::Linear head_{nullptr};
  at::Tensor middle_;
  std::list<testing::Body> bodies_;  // of recomputed calls, while their graph lives
};

/// Equal weights each time, in double precision.
std::shared_ptr<Net> build(const NetSpec& spec);

}  // namespace fullshard::fuzz
