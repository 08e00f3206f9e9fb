#include "fullshard/config/render.h"

#include <gmock/gmock.h>

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "config/support.h"
#include "fullshard/config/json.h"

namespace fullshard::config {
namespace {

using ::testing::HasSubstr;

TEST(Schema, EveryDefaultIsAllowedByItsOwnRow) {
  for (const Field& field : schema()) {
    TrainConfig config;
    EXPECT_EQ(assign(config, field, field.get(config), field.key()), std::nullopt);
  }
}

TEST(Schema, EveryRowReachesAFieldOfItsOwn) {
  std::set<std::string> keys;
  for (const Field& field : schema()) {
    EXPECT_TRUE(keys.insert(field.key()).second) << field.key();
    EXPECT_EQ(find_field(field.key()), &field);
    if (field.choices.size() == 1) continue;
    TrainConfig config;
    field.set(config, other_value(field));
    for (const Field& reader : schema()) {
      EXPECT_EQ(reader.get(config) != reader.get(TrainConfig{}), &reader == &field)
          << field.key() << " changed " << reader.key();
    }
  }
}

TEST(Schema, AnIntegerThatFitsNoIntIsRefusedWithItsLimit) {
  for (const Field& field : schema()) {
    TrainConfig config;
    if (field.type != ValueType::kInteger || std::isinf(field.range.high)) continue;
    const auto problem = assign(config, field, std::int64_t{1} << 31, field.key());
    ASSERT_TRUE(problem);
    EXPECT_THAT(*problem, HasSubstr(fmt::format(" to {}", field.range.high)));
  }
}

TEST(Schema, SectionsStandTogether) {
  const std::vector<std::string> sections = section_names();
  EXPECT_EQ(std::set<std::string>(sections.begin(), sections.end()).size(), sections.size());
}

TEST(ToToml, GivesBackTheSameConfiguration) {
  for (const TrainConfig& config : {TrainConfig{}, other_config()}) {
    TrainConfig read;
    const std::string text = to_toml(config);
    apply_toml(read, text, "printed");
    EXPECT_TRUE(same(read, config)) << text;
    EXPECT_EQ(to_toml(read), text);
  }
}

TEST(ToToml, AFloatLooksLikeOne) {
  EXPECT_EQ(to_toml(Value(1.0)), "1.0");
  EXPECT_EQ(to_toml(Value(1e-8)), "1e-08");
  EXPECT_EQ(to_toml(Value(0.1)), "0.1");
  EXPECT_EQ(to_toml(Value(std::int64_t{1})), "1");
}

TEST(Json, GivesBackTheSameConfiguration) {
  for (const TrainConfig& config : {TrainConfig{}, other_config()}) {
    const std::string text = to_json(config);
    EXPECT_TRUE(same(parse_json(text), config)) << text;
    EXPECT_EQ(to_json(parse_json(text)), text);
  }
}

TEST(Json, AbsentFieldsKeepTheirDefaults) {
  const TrainConfig config = parse_json(R"({"training": {"steps": 7}})");
  EXPECT_EQ(config.training.steps, 7);
  EXPECT_EQ(config.training.seq_len, TrainConfig{}.training.seq_len);
}

TEST(Json, RefusesWhatTheSchemaDoesNotAllow) {
  const auto why = [](const char* text) { return complaint([&] { parse_json(text, "handed"); }); };
  EXPECT_THAT(why("{"), HasSubstr("handed: not a JSON object"));
  EXPECT_THAT(why(R"({"training": 3})"), HasSubstr("handed: 'training' must be an object"));
  EXPECT_THAT(why(R"({"training": {"step": 3}})"), HasSubstr("'training.steps'"));
  EXPECT_EQ(why(R"({"training": {"steps": "3"}})"),
            "handed: training.steps: found text \"3\"; expected an integer, 1 or more");
  EXPECT_THAT(why(R"({"training": {"steps": null}})"), HasSubstr("training.steps"));
}

TEST(HelpAndMarkdown, ShowEveryFieldWithDefaultAndUnit) {
  const std::string help = flag_help();
  const std::string markdown = markdown_tables();
  for (const Field& field : schema()) {
    const std::string preset = to_toml(field.get(TrainConfig{}));
    EXPECT_THAT(help, HasSubstr("--" + field.key() + " VALUE\n      " + field.help));
    EXPECT_THAT(help, HasSubstr("; default " + preset + "\n"));
    EXPECT_THAT(markdown, HasSubstr("| `" + field.name + "` | " + expected(field) + " | " +
                                    field.unit + " | `" + preset + "` |"));
  }
}

}  // namespace
}  // namespace fullshard::config
