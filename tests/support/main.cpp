#include <gtest/gtest.h>
#include <torch/torch.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
// libtorch keeps what it allocates at start, and rooms that a test links by themselves are in
// libfullshard.so as well.
extern "C" const char* __asan_default_options() { return "detect_leaks=0:detect_odr_violation=0"; }
#endif
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
