// Finding, loading and checking the GPU plugin, with small ones made for it, and the real one where
// it was built.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "comm/device/driver.h"
#include "comm/device/placement.h"
#include "comm/device/plugin_library.h"
#include "comm/errors.h"
#include "support/temporary_folder.h"

namespace fullshard::comm::testing {
namespace {

using base::ErrorCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Path = std::filesystem::path;

const Path kPlugins = TEST_PLUGINS;

std::string error_of(ErrorCode code, const std::vector<Path>& places, const char* torch = "9.9") {
  return expect_error(code, [&] { device::load_plugin(places, torch); }).what();
}

TEST(Plugin, IsTakenFromTheFirstPlaceThatHasIt) {
  const fullshard::testing::TemporaryFolder empty;
  const std::vector<Path> places = {empty.path(), kPlugins / "fits", kPlugins / "other_version"};
  const device::Plugin& plugin = device::load_plugin(places, "9.9");
  EXPECT_STREQ(plugin.torch, "9.9");
  EXPECT_EQ(&device::load_plugin(places, "9.9"), &plugin);
  std::string why;
  EXPECT_EQ(plugin.count_devices(why), 0);
  EXPECT_EQ(why, "a plugin for tests has none");
}

TEST(Plugin, MissingNamesThePlacesAndHowToGetIt) {
  const fullshard::testing::TemporaryFolder empty;
  EXPECT_THAT(error_of(ErrorCode::kFile, {empty.path(), "/nowhere"}),
              AllOf(HasSubstr("libfullshard_cuda.so is neither in " + empty.path().string() +
                              ", /nowhere nor"),
                    HasSubstr("-DFULLSHARD_CUDA=ON")));
}

TEST(Plugin, ThatCannotBeLoadedSaysWhy) {
  const fullshard::testing::TemporaryFolder folder;
  std::ofstream(folder.path() / device::kPluginLibrary) << "no library";
  EXPECT_THAT(error_of(ErrorCode::kFile, {folder.path()}),
              AllOf(HasSubstr("cannot load the GPU plugin: " + folder.path().string()),
                    HasSubstr("LD_LIBRARY_PATH")));
}

TEST(Plugin, OfAnotherBuildIsRefused) {
  EXPECT_THAT(error_of(ErrorCode::kConfiguration, {kPlugins / "other_version"}),
              AllOf(HasSubstr("is of fullshard 0.0.1, and this is "), HasSubstr("together")));
  EXPECT_THAT(error_of(ErrorCode::kConfiguration, {kPlugins / "fits"}, "2.11.0"),
              HasSubstr("was built against libtorch 9.9, and this is 2.11.0"));
  EXPECT_THAT(error_of(ErrorCode::kConfiguration, {kPlugins / "no_symbol"}),
              HasSubstr("is no plugin of fullshard: "));
}

TEST(Plugin, IsLookedForBesideThisCode) {
  EXPECT_EQ(device::plugin_places().front(),
            std::filesystem::read_symlink("/proc/self/exe").parent_path());
}

#ifdef REAL_PLUGIN
TEST(Plugin, TheRealOneLoadsWithAllItsLibrariesAndCountsGpus) {
  const std::vector<Path> places = {REAL_PLUGIN};
  const device::Plugin& plugin = device::load_plugin(places, TORCH_OF_PLUGIN);
  std::string why;
  const int devices = plugin.count_devices(why);
  if (std::filesystem::exists("/proc/driver/nvidia/version")) {
    EXPECT_TRUE(devices > 0 || !why.empty());
  } else {
    EXPECT_EQ(devices, 0);
    EXPECT_THAT(why, HasSubstr("NVIDIA driver"));
  }
}
#endif

TEST(Driver, SaysHowManyGpusThereAre) {
  const auto count = [](const char* folder) {
    return device::count_gpus((kPlugins / folder / "libcuda.so").c_str());
  };
  EXPECT_EQ(count("two_gpus"), 2);
  EXPECT_EQ(count("no_gpus"), 0);
  EXPECT_EQ(count("broken_driver"), 0);
  EXPECT_EQ(count("nothing_here"), 0);
  EXPECT_EQ(count("no_symbol"), 0);
}

TEST(Placement, M11_EachRankOfAHostTakesItsOwnGpu) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(device::choose_device({rank, 4}, 4, false), rank);
    EXPECT_EQ(device::choose_device({rank, 4}, 8, false), rank);
  }
  EXPECT_EQ(device::choose_device({3, 4}, 1, true), 0);  // the launcher gave it this one
}

TEST(Placement, M11_WithFewerGpusThanRanksEveryRankOfTheHostFails) {
  for (const int rank : {0, 1, 3}) {
    for (const bool restricted : {false, true}) {
      const auto error = expect_error(ErrorCode::kConfiguration, [&] {
        device::choose_device({rank, 4}, 2, restricted);
      });
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(fmt::format("rank {} of 4 on its host", rank)),
                        HasSubstr("2 GPUs are visible"), HasSubstr("at most one rank a GPU")));
    }
  }
  EXPECT_THAT(expect_error(ErrorCode::kConfiguration,
                           [] {
                             device::choose_device({0, 2}, 1, false);
                           })
                  .what(),
              HasSubstr("1 GPU is visible"));
}

}  // namespace
}  // namespace fullshard::comm::testing
