#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "fullshard/base/error.h"
#include "fullshard/doctor/trace.h"

namespace fullshard::doctor {
namespace {

using base::Error;
using base::ErrorCode;
using comm::FlightRecord;
namespace fs = std::filesystem;

std::vector<fs::path> records_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("flight_rank") && name.ends_with(".json")) files.push_back(entry.path());
  }
  if (!files.empty()) return files;
  throw Error(ErrorCode::kFile,
              fmt::format("the folder {} holds no flight_rank*.json", folder.string()));
}

std::vector<fs::path> expand(std::span<const fs::path> given) {
  std::vector<fs::path> files;
  for (const fs::path& path : given) {
    if (fs::is_directory(path)) {
      const auto found = records_in(path);
      files.insert(files.end(), found.begin(), found.end());
    } else {
      files.push_back(path);
    }
  }
  return files;
}

}  // namespace

std::vector<FlightRecord> read_records(std::span<const fs::path> given) {
  std::vector<FlightRecord> records;
  std::map<int, fs::path> file_of;
  for (const fs::path& file : expand(given)) {
    FlightRecord record = comm::read_flight_record(file);
    const auto [other, is_new] = file_of.emplace(record.rank, file);
    if (!is_new) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} and {} are both of rank {}; name one file of each rank",
                              other->second.string(), file.string(), record.rank));
    }
    if (!records.empty() && records.front().world_size != record.world_size) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} is of a job of {} ranks, {} of one of {}; name the files of one "
                              "job",
                              file_of.at(records.front().rank).string(), records.front().world_size,
                              file.string(), record.world_size));
    }
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace fullshard::doctor
