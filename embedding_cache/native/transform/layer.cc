#include "transform/layer.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "format/json.h"

namespace rankhouse::transform {
namespace {

using format::ArrayView;
using format::RequireIntact;

int64_t PlaceOf(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : found - names.begin();
}

IntTable TableOf(const std::string& path, const std::string& name, const Layer::Ints& ints) {
  constexpr int64_t kAhead = 16;
  const int64_t size = ints.values.size();
  IntTable table(size);
  for (int64_t i = 0; i < size; ++i) {
    RequireIntact(i == 0 || ints.values[i - 1] < ints.values[i], path, "int.", name, ".values is not sorted at place ",
                  i);
    RequireIntact(ints.ids[i] <= kMaxId, path, "int.", name, ".ids has ", ints.ids[i], "; expected at most 2^62");
    table.Prefetch(ints.values[std::min(i + kAhead, size - 1)]);
    table.Add(ints.values[i], ints.ids[i]);
  }
  return table;
}

// The layers that are open in this process, by their file and what is read of it.
class OpenLayers {
 public:
  std::shared_ptr<const Layer> Find(const std::string& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = layers_.find(key);
    return found == layers_.end() ? nullptr : found->second.lock();
  }

  void Add(const std::string& key, const std::shared_ptr<const Layer>& layer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = layers_.begin(); entry != layers_.end();) {
      entry = entry->second.expired() ? layers_.erase(entry) : std::next(entry);
    }
    layers_[key] = layer;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const Layer>> layers_;
};

}  // namespace

int64_t TableNames::IntTableOf(const std::string& name) const { return PlaceOf(ints, name); }

int64_t TableNames::TextTableOf(const std::string& name) const { return PlaceOf(texts, name); }

std::shared_ptr<const Layer> Layer::Open(const std::string& path, const TableNames& names, bool is_first) {
  static OpenLayers& open =
      *new OpenLayers;  // Never destroyed: threads may still close transforms when the process ends.
  const std::string tables = format::Json({names.ints, names.texts, is_first}).dump();
  std::shared_ptr<const Layer> layer = open.Find(format::FileIdentity(path) + tables);
  if (layer == nullptr) {
    layer.reset(new Layer(path, names, is_first));
    open.Add(layer->file_.identity() + tables, layer);
  }
  return layer;
}

Layer::Layer(const std::string& path, const TableNames& names, bool is_first)
    : file_(path), texts_(file_, static_cast<int64_t>(names.texts.size())) {
  for (const std::string& table : names.ints) {
    const Ints ints = {file_.array<int64_t>("int." + table + ".values", "I64"),
                       file_.array<int64_t>("int." + table + ".ids", "I64")};
    RequireIntact(ints.values.size() == ints.ids.size(), path, "int.", table, ".values has ", ints.values.size(),
                  " elements, .ids ", ints.ids.size(), "; expected one id for each value");
    ints_.push_back(ints);
    if (is_first) int_tables_.push_back(TableOf(path, table, ints));
  }
  if (is_first) return;
  text_ids_ = file_.array<int64_t>("text.ids", "I64");
  RequireIntact(text_ids_.size() == texts_.num_texts(), path, "text.ids has ", text_ids_.size(), " ids; expected ",
                texts_.num_texts(), ", one for each text");
}

ArrayView<int64_t> Layer::ChangedIds(const TableNames& names, const std::string& table) const {
  const int64_t ints = names.IntTableOf(table);
  if (ints >= 0) return ints_[ints].ids;
  const int64_t begin = texts_.table_begin(names.TextTableOf(table));
  return {text_ids_.address(begin), texts_.table_end(names.TextTableOf(table)) - begin};
}

ArrayView<int64_t> Layer::Freed(const std::string& table) const {
  return file_.array<int64_t>("freed." + table, "I64");
}

}  // namespace rankhouse::transform
