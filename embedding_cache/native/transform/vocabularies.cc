#include "transform/vocabularies.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace rankhouse::transform {
namespace {

using format::ArrayView;
using format::Json;
using format::RequireIntact;

constexpr int64_t kRemoved = -1;  // What stands for an id where a layer removes a value.
constexpr int64_t kMaxId = int64_t{1} << 62;

std::vector<std::string> Names(const std::string& where, const Json& document, const char* key) {
  std::vector<std::string> names;
  for (const Json& name : format::ArrayMember(where, document, key)) {
    RequireIntact(name.is_string(), where, "expected names of tables under '", key, "', found ", name.type_name());
    names.push_back(name.get<std::string>());
  }
  return names;
}

int64_t PlaceOf(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : found - names.begin();
}

IntIndex OpenInts(const format::TensorFile& file, const std::string& table) {
  const auto values = file.array<int64_t>("int." + table + ".values", "I64");
  const auto ids = file.array<int64_t>("int." + table + ".ids", "I64");
  RequireIntact(values.size() == ids.size(), file.path(), "int.", table, ".values has ", values.size(),
                " elements, .ids ", ids.size(), "; expected one id for each value");
  return {values, ids};
}

ArrayView<int64_t> View(const std::vector<int64_t>& elements) {
  return {reinterpret_cast<const std::byte*>(elements.data()), static_cast<int64_t>(elements.size())};
}

// Checks that a layer frees as many ids of a table as it removes values, and that all ids are of known values.
void CheckChange(const format::TensorFile& file, const std::string& table, ArrayView<int64_t> ids) {
  const auto freed = file.array<int64_t>("freed." + table, "I64");
  const auto is_known = [](int64_t id) { return kFirstKnownId <= id && id <= kMaxId; };
  int64_t num_removed = 0;
  bool are_known = true;
  for (int64_t i = 0; i < ids.size(); ++i) {
    num_removed += ids[i] == kRemoved;
    are_known &= ids[i] == kRemoved || is_known(ids[i]);
  }
  for (int64_t i = 0; i < freed.size(); ++i) are_known &= is_known(freed[i]);
  RequireIntact(freed.size() == num_removed && are_known, file.path(), "frees ", freed.size(), " ids of table '", table,
                "' for ", num_removed, " removed values, or has an id outside ", kFirstKnownId, " to 2^62");
}

}  // namespace

Vocabularies::Layer::Layer(const std::string& path, bool is_first, const Vocabularies& vocabularies)
    : file(path), texts(file, static_cast<int64_t>(vocabularies.text_tables_.size())) {
  for (const std::string& table : vocabularies.int_tables_) ints.push_back(OpenInts(file, table));
  if (is_first) return;
  text_ids = file.array<int64_t>("text.ids", "I64");
  RequireIntact(text_ids.size() == texts.num_texts(), path, "text.ids has ", text_ids.size(), " ids; expected ",
                texts.num_texts(), ", one for each text");
}

Vocabularies::Vocabularies(const std::string& where, const Json& document, const std::vector<std::string>& layers) {
  const std::string here = where + ": vocabularies";
  format::CheckKeys(here, document, {"num_rows", "ints", "texts"});
  int_tables_ = Names(here, document, "ints");
  text_tables_ = Names(here, document, "texts");
  std::set<std::string> names;
  for (const auto* tables : {&int_tables_, &text_tables_}) {
    for (const std::string& name : *tables) {
      RequireIntact(names.insert(name).second, here, "table '", name, "' stands twice");
    }
  }
  for (const std::string& path : layers) {
    layers_.push_back(std::make_unique<Layer>(path, layers_.empty(), *this));
  }
  CheckRows(here, document);
  if (layers_.size() == 1) return;
  for (size_t table = 0; table < int_tables_.size(); ++table) int_changes_.push_back(MergedInts(table));
  text_changes_ = MergedTexts();
}

int64_t Vocabularies::IntTable(const std::string& name) const { return PlaceOf(int_tables_, name); }

int64_t Vocabularies::TextTable(const std::string& name) const { return PlaceOf(text_tables_, name); }

void Vocabularies::CheckRows(const std::string& where, const Json& document) const {
  const Json& num_rows = format::ObjectMember(where, document, "num_rows");
  for (const auto& [name, value] : num_rows.items()) {
    RequireIntact(IntTable(name) >= 0 || TextTable(name) >= 0, where, "num_rows has table '", name,
                  "', which stands neither in ints nor in texts");
  }
  for (const auto* tables : {&int_tables_, &text_tables_}) {
    for (const std::string& name : *tables) {
      const int64_t expected = format::IntegerMember(where + ": num_rows", num_rows, name);
      const int64_t found = NumRows(name);
      RequireIntact(found == expected, where, "the layers make ", found, " rows of table '", name, "'; expected ",
                    expected);
    }
  }
}

int64_t Vocabularies::NumRows(const std::string& name) const {
  const Layer& base = *layers_.front();
  const int64_t table = IntTable(name);
  const int64_t texts = TextTable(name);
  const int64_t num_values =
      table >= 0 ? base.ints[table].size() : base.texts.table_end(texts) - base.texts.table_begin(texts);
  int64_t num_rows = kFirstKnownId + num_values;
  for (size_t layer = 1; layer < layers_.size(); ++layer) {
    const ArrayView<int64_t> ids = ChangedIds(*layers_[layer], name);
    CheckChange(layers_[layer]->file, name, ids);
    for (int64_t i = 0; i < ids.size(); ++i) num_rows = std::max(num_rows, ids[i] + 1);
  }
  return num_rows;
}

ArrayView<int64_t> Vocabularies::ChangedIds(const Layer& layer, const std::string& name) const {
  const int64_t table = IntTable(name);
  if (table >= 0) return layer.ints[table].ids();
  const int64_t begin = layer.texts.table_begin(TextTable(name));
  return {layer.text_ids.address(begin), layer.texts.table_end(TextTable(name)) - begin};
}

Vocabularies::IntChanges Vocabularies::MergedInts(size_t table) const {
  // The newest layer first, so that of equal values the first is the one that counts.
  std::vector<std::pair<int64_t, int64_t>> changes;
  for (size_t layer = layers_.size() - 1; layer > 0; --layer) {
    const IntIndex& index = layers_[layer]->ints[table];
    for (int64_t i = 0; i < index.size(); ++i) changes.emplace_back(index.value(i), index.id(i));
  }
  const auto is_less = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(changes.begin(), changes.end(), is_less);
  IntChanges merged;
  for (const auto& [value, id] : changes) {
    if (!merged.values.empty() && merged.values.back() == value) continue;
    merged.values.push_back(value);
    merged.ids.push_back(id);
  }
  merged.index = {View(merged.values), View(merged.ids)};
  return merged;
}

std::unique_ptr<TextChanges> Vocabularies::MergedTexts() const {
  int64_t num_texts = 0;
  for (size_t layer = 1; layer < layers_.size(); ++layer) num_texts += layers_[layer]->texts.num_texts();
  if (num_texts == 0) return nullptr;
  auto changes = std::make_unique<TextChanges>(num_texts);
  for (size_t layer = layers_.size() - 1; layer > 0; --layer) {
    const TextIndex& texts = layers_[layer]->texts;
    for (size_t table = 0; table < text_tables_.size(); ++table) {
      for (int64_t number = texts.table_begin(table); number < texts.table_end(table); ++number) {
        changes->Add(texts.text(number, table), layers_[layer]->text_ids[number]);
      }
    }
  }
  return changes;
}

void Vocabularies::FindInts(int64_t table, int64_t* values, int64_t n) const {
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    int64_t* ids = values + begin;
    int64_t asked[kBlock], newer[kBlock];
    std::copy_n(ids, count, asked);
    layers_.front()->ints[table].Find(asked, count, ids);
    if (!int_changes_.empty() && int_changes_[table].index.size() > 0) {
      int_changes_[table].index.Find(asked, count, newer);
      for (int64_t i = 0; i < count; ++i) ids[i] = newer[i] == kUntold ? ids[i] : newer[i];
    }
    for (int64_t i = 0; i < count; ++i) ids[i] = ids[i] < 0 ? kUnknownId : ids[i];
  }
}

void Vocabularies::FindTexts(const Text* texts, int64_t n, int64_t* ids) const {
  const TextIndex& base = layers_.front()->texts;
  int64_t numbers[kMaxTexts];
  transform::FindTexts(base, texts, n, numbers);
  for (int64_t i = 0; i < n; ++i) {
    ids[i] = numbers[i] == kAbsent ? kUnknownId : numbers[i] - base.table_begin(texts[i].table) + kFirstKnownId;
  }
  if (text_changes_ == nullptr) return;
  transform::FindTexts(*text_changes_, texts, n, numbers);
  for (int64_t i = 0; i < n; ++i) {
    if (numbers[i] == kAbsent) continue;
    const int64_t id = text_changes_->id(numbers[i]);
    ids[i] = id < 0 ? kUnknownId : id;
  }
}

}  // namespace rankhouse::transform
