#include "cache/hot_rows.h"

#include <algorithm>
#include <filesystem>

#include "cache/hot_rows_file.h"
#include "core/status.h"

namespace rankhouse::cache {
namespace {

constexpr char kSuffix[] = ".hot_rows.safetensors";

// The model's name, or "" for another file, such as one that was never finished.
std::string ModelOf(const std::string& file) {
  const size_t suffix = sizeof(kSuffix) - 1;
  if (file.size() <= suffix || file.compare(file.size() - suffix, suffix, kSuffix) != 0) return "";
  return file.substr(0, file.size() - suffix);
}

}  // namespace

std::shared_ptr<HotTable> HotRows::Table(const std::string& model, const std::string& table) {
  Require(!model.empty() && model[0] != '.' && model.find('/') == std::string::npos, "the model's name is \"", model,
          "\": expected one that can begin a file's name");
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<HotTable>& found = models_[model][table];
  if (found == nullptr) found = std::make_shared<HotTable>(options_);
  return found;
}

void HotRows::Save(const std::string& folder) const {
  const std::lock_guard<std::mutex> one_at_a_time(saving_);
  std::map<std::string, Tables> models;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    models = models_;
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw Error(RH_INVALID_ARGUMENT, StrCat("making the folder ", folder, " failed: ", error.message()));
  for (const auto& [model, tables] : models) {
    HotRowsByTable rows;
    for (const auto& [name, table] : tables) rows[name] = table->Top(options_.max_ids);
    WriteHotRows(StrCat(folder, "/", model, kSuffix), rows);
  }
}

void HotRows::Load(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> models;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string model = ModelOf(entry.path().filename().string());
    if (!model.empty()) models.push_back(model);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error(RH_INVALID_ARGUMENT, StrCat("reading the folder ", folder, " of hot rows failed: ", error.message()));
  }
  std::sort(models.begin(), models.end());
  for (const std::string& model : models) {
    try {
      for (const auto& [table, rows] : ReadHotRows(StrCat(folder, "/", model, kSuffix))) Table(model, table)->Add(rows);
    } catch (const Error& error) {
      throw Error(error.status(), StrCat(error.what(), "; or remove it: what is hot is learnt anew"));
    }
  }
}

}  // namespace rankhouse::cache
