#include "fullshard/config/load.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "config/support.h"

namespace fullshard::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string toml_complaint(const std::string& text) {
  TrainConfig config;
  return complaint([&] { apply_toml(config, text, "run.toml"); });
}

std::string flag_complaint(const std::string& key, const std::string& text) {
  TrainConfig config;
  return complaint([&] { apply_flags(config, {{key, text}}); });
}

TEST(Toml, SetsWhatItNamesAndNothingElse) {
  TrainConfig config;
  apply_toml(config, "[training]\nsteps = 7\n[optimizer]\nno_decay = ['x*']\nlr = 1\n", "run.toml");
  EXPECT_EQ(config.training.steps, 7);
  EXPECT_EQ(config.optimizer.lr, 1.0);
  EXPECT_THAT(config.optimizer.no_decay, ElementsAre("x*"));
  config.training.steps = TrainConfig{}.training.steps;
  config.optimizer = TrainConfig{}.optimizer;
  EXPECT_TRUE(same(config, TrainConfig{}));
}

TEST(Toml, AcceptsKeysWithDots) {
  TrainConfig config;
  apply_toml(config, "training.steps = 7\n", "run.toml");
  EXPECT_EQ(config.training.steps, 7);
}

TEST(Toml, NamesFileLineKeyFoundAndExpectedForEachType) {
  const std::string head = "# a comment\n\n";
  EXPECT_EQ(toml_complaint(head + "[training]\nsteps = \"3\"\n"),
            "run.toml:4: training.steps: found text \"3\"; expected an integer, 1 or more");
  EXPECT_EQ(toml_complaint("[training]\nsteps = 2.0\n"),
            "run.toml:2: training.steps: found number 2.0; expected an integer, 1 or more");
  EXPECT_EQ(toml_complaint("[optimizer]\nbeta1 = 1\n"),
            "run.toml:2: optimizer.beta1: found integer 1; expected a number, from 0 to below 1");
  EXPECT_EQ(toml_complaint("[optimizer]\nlr = inf\n"),
            "run.toml:2: optimizer.lr: found number inf; expected a number, 0 or more");
  EXPECT_EQ(toml_complaint("[validation]\nenable = 1\n"),
            "run.toml:2: validation.enable: found integer 1; expected true or false");
  EXPECT_EQ(toml_complaint("[data]\npath = true\n"),
            "run.toml:2: data.path: found boolean true; expected UTF-8 text");
  EXPECT_EQ(toml_complaint("[optimizer]\nno_decay = 'x'\n"),
            "run.toml:2: optimizer.no_decay: found text \"x\"; expected a list of UTF-8 texts");
  EXPECT_EQ(toml_complaint("[comm]\nbackend = 'shn'\n"),
            "run.toml:2: comm.backend: found text \"shn\"; expected one of auto, shm, gloo, "
            "local; did you mean shm?");
}

TEST(Toml, SuggestsTheNearestKey) {
  EXPECT_EQ(toml_complaint("[training]\n\nstep = 3\n"),
            "run.toml:3: unknown key 'training.step'; the nearest known one is 'training.steps'");
  EXPECT_THAT(toml_complaint("[training]\nlr = 3\n"), HasSubstr("'optimizer.lr'"));
  EXPECT_THAT(toml_complaint("[trainig]\nsteps = 3\n"),
              AllOf(HasSubstr("run.toml:1:"), HasSubstr("[training]")));
  EXPECT_THAT(toml_complaint("[zzzzzzzzzzzz]\n"), HasSubstr("job, model, training"));
  EXPECT_THAT(toml_complaint("steps = 3\n"), HasSubstr("'training.steps'"));
}

TEST(Toml, ListsEveryFaultInTheOrderOfLines) {
  const std::string text =
      toml_complaint("[training]\nstep = 3\nseed = -1\n[comm]\nbackend = 5\n[job]\nx = 1\n");
  std::vector<std::string> heads;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) heads.push_back(line.substr(0, 11));
  EXPECT_THAT(heads, ElementsAre("run.toml:2:", "run.toml:3:", "run.toml:5:", "run.toml:7:"));
}

TEST(Toml, SaysWhereTheSyntaxBreaks) {
  EXPECT_THAT(toml_complaint("[training]\nsteps = \n"), HasSubstr("run.toml:2: not valid TOML"));
  EXPECT_THAT(toml_complaint("[training]\nsteps = 1\nsteps = 2\n"), HasSubstr("run.toml:3:"));
}

TEST(Toml, ChangesNothingWhenOneFieldIsWrong) {
  TrainConfig config;
  EXPECT_NE(complaint([&] { apply_toml(config, "[training]\nsteps = 7\nseed = -1\n", "f"); }), "");
  EXPECT_TRUE(same(config, TrainConfig{}));
}

TEST(TomlFile, IsReadFromDiskAndNamedWhenItCannotBe) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("fullshard_config_test_" + std::to_string(::getpid()) + ".toml");
  std::ofstream(path) << "[training]\nsteps = 7\n";
  TrainConfig config;
  apply_toml_file(config, path);
  EXPECT_EQ(config.training.steps, 7);
  std::filesystem::remove(path);
  EXPECT_THAT(complaint([&] { apply_toml_file(config, path); }),
              AllOf(HasSubstr(path), HasSubstr("No such file")));
  EXPECT_THAT(complaint([&] { apply_toml_file(config, "/"); }), HasSubstr("Is a directory"));
}

TEST(Flags, AreReadAsTheFieldsType) {
  TrainConfig config;
  apply_flags(config, {{"training.steps", "7"},
                       {"optimizer.lr", "1e-3"},
                       {"validation.enable", "false"},
                       {"data.path", "12"},
                       {"parallelism.sharding_strategy", "NO_SHARD"},
                       {"training.dtype", "float64"},
                       {"optimizer.no_decay", "a,b*"}});
  EXPECT_EQ(config.training.steps, 7);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_FALSE(config.validation.enable);
  EXPECT_EQ(config.data.path, "12");
  EXPECT_EQ(config.parallelism.sharding_strategy, ShardingStrategy::kNoShard);
  EXPECT_EQ(config.training.dtype, base::DType::kFloat64);
  EXPECT_THAT(config.optimizer.no_decay, ElementsAre("a", "b*"));
}

TEST(Flags, AnEmptyTextIsAnEmptyList) {
  TrainConfig config;
  apply_flags(config, {{"optimizer.no_decay", ""}});
  EXPECT_TRUE(config.optimizer.no_decay.empty());
}

TEST(Flags, ComplaintsNameTheFlag) {
  EXPECT_EQ(flag_complaint("training.steps", "many"),
            "--training.steps: found text \"many\"; expected an integer, 1 or more");
  EXPECT_EQ(flag_complaint("training.steps", "3x"),
            "--training.steps: found text \"3x\"; expected an integer, 1 or more");
  EXPECT_EQ(flag_complaint("training.seed", "99999999999999999999"),
            "--training.seed: found text \"99999999999999999999\"; expected an integer, 0 or more");
  EXPECT_EQ(flag_complaint("job.master_port", "65536"),
            "--job.master_port: found integer 65536; expected an integer, from 0 to 65535");
  EXPECT_EQ(flag_complaint("model.dim", "2147483648"),
            "--model.dim: found integer 2147483648; expected an integer, from 1 to 1000000");
  EXPECT_EQ(flag_complaint("training.step", "3"),
            "unknown option '--training.step'; the nearest known one is '--training.steps'");
  EXPECT_NE(flag_complaint("data.path", "caf\xe9"), "");
}

TEST(Flags, ChangeNothingWhenOneIsWrong) {
  TrainConfig config;
  EXPECT_NE(complaint([&] {
              apply_flags(config, {{"training.steps", "7"}, {"training.seed", "x"}});
            }),
            "");
  EXPECT_TRUE(same(config, TrainConfig{}));
}

}  // namespace
}  // namespace fullshard::config
