#include "transform/vocabularies.h"

#include <algorithm>
#include <set>

namespace rankhouse::transform {
namespace {

using format::ArrayView;
using format::Json;
using format::RequireIntact;

std::vector<std::string> Names(const std::string& where, const Json& document, const char* key) {
  std::vector<std::string> names;
  for (const Json& name : format::ArrayMember(where, document, key)) {
    RequireIntact(name.is_string(), where, "expected names of tables under '", key, "', found ", name.type_name());
    names.push_back(name.get<std::string>());
  }
  return names;
}

// Checks that a layer frees as many ids of a table as it removes values, and that all ids are of known values.
void CheckChange(const Layer& layer, const std::string& table, ArrayView<int64_t> ids) {
  const ArrayView<int64_t> freed = layer.Freed(table);
  const auto is_known = [](int64_t id) { return kFirstKnownId <= id && id <= kMaxId; };
  int64_t num_removed = 0;
  bool are_known = true;
  for (int64_t i = 0; i < ids.size(); ++i) {
    num_removed += ids[i] == kRemoved;
    are_known &= ids[i] == kRemoved || is_known(ids[i]);
  }
  for (int64_t i = 0; i < freed.size(); ++i) are_known &= is_known(freed[i]);
  RequireIntact(freed.size() == num_removed && are_known, layer.path(), "frees ", freed.size(), " ids of table '",
                table, "' for ", num_removed, " removed values, or has an id outside ", kFirstKnownId, " to 2^62");
}

}  // namespace

Vocabularies::Vocabularies(const std::string& where, const Json& document, const std::vector<std::string>& layers) {
  const std::string here = where + ": vocabularies";
  format::CheckKeys(here, document, {"num_rows", "ints", "texts"});
  names_ = {Names(here, document, "ints"), Names(here, document, "texts")};
  std::set<std::string> once;
  for (const auto* tables : {&names_.ints, &names_.texts}) {
    for (const std::string& name : *tables) {
      RequireIntact(once.insert(name).second, here, "table '", name, "' stands twice");
    }
  }
  for (const std::string& path : layers) layers_.push_back(Layer::Open(path, names_, layers_.empty()));
  CheckRows(here, document);
  if (layers_.size() == 1) return;
  for (size_t table = 0; table < names_.ints.size(); ++table) int_changes_.push_back(MergedInts(table));
  text_changes_ = MergedTexts();
}

void Vocabularies::CheckRows(const std::string& where, const Json& document) const {
  const Json& num_rows = format::ObjectMember(where, document, "num_rows");
  for (const auto& [name, value] : num_rows.items()) {
    RequireIntact(names_.IntTableOf(name) >= 0 || names_.TextTableOf(name) >= 0, where, "num_rows has table '", name,
                  "', which stands neither in ints nor in texts");
  }
  for (const auto* tables : {&names_.ints, &names_.texts}) {
    for (const std::string& name : *tables) {
      const int64_t expected = format::IntegerMember(where + ": num_rows", num_rows, name);
      const int64_t found = NumRows(name);
      RequireIntact(found == expected, where, "the layers make ", found, " rows of table '", name, "'; expected ",
                    expected);
    }
  }
}

int64_t Vocabularies::NumRows(const std::string& table) const {
  const Layer& base = *layers_.front();
  const int64_t ints = names_.IntTableOf(table);
  const int64_t texts = names_.TextTableOf(table);
  int64_t num_rows = kFirstKnownId + (ints >= 0 ? base.ints(ints).values.size()
                                                : base.texts().table_end(texts) - base.texts().table_begin(texts));
  for (size_t layer = 1; layer < layers_.size(); ++layer) {
    const ArrayView<int64_t> ids = layers_[layer]->ChangedIds(names_, table);
    CheckChange(*layers_[layer], table, ids);
    for (int64_t i = 0; i < ids.size(); ++i) num_rows = std::max(num_rows, ids[i] + 1);
  }
  return num_rows;
}

IntTable Vocabularies::MergedInts(size_t table) const {
  int64_t num_values = 0;
  for (size_t layer = 1; layer < layers_.size(); ++layer) num_values += layers_[layer]->ints(table).values.size();
  // The newest layer first: what it says of a value is not changed by an older one.
  IntTable merged(num_values);
  for (size_t layer = layers_.size() - 1; layer > 0; --layer) {
    const Layer::Ints& own = layers_[layer]->ints(table);
    for (int64_t i = 0; i < own.values.size(); ++i) merged.Add(own.values[i], own.ids[i]);
  }
  return merged;
}

std::unique_ptr<TextChanges> Vocabularies::MergedTexts() const {
  int64_t num_texts = 0;
  for (size_t layer = 1; layer < layers_.size(); ++layer) num_texts += layers_[layer]->texts().num_texts();
  if (num_texts == 0) return nullptr;
  auto changes = std::make_unique<TextChanges>(num_texts);
  for (size_t layer = layers_.size() - 1; layer > 0; --layer) {
    const TextIndex& texts = layers_[layer]->texts();
    for (size_t table = 0; table < names_.texts.size(); ++table) {
      for (int64_t number = texts.table_begin(table); number < texts.table_end(table); ++number) {
        changes->Add(texts.text(number, table), layers_[layer]->text_id(number));
      }
    }
  }
  return changes;
}

void Vocabularies::FindInts(int64_t table, int64_t* values, int64_t n) const {
  constexpr int64_t kBlock = 64;
  const IntTable& known = layers_.front()->int_table(table);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    int64_t* ids = values + begin;
    int64_t asked[kBlock], newer[kBlock];
    std::copy_n(ids, count, asked);
    known.Find(asked, count, ids);
    if (!int_changes_.empty() && !int_changes_[table].empty()) {
      int_changes_[table].Find(asked, count, newer);
      for (int64_t i = 0; i < count; ++i) ids[i] = newer[i] == kUntold ? ids[i] : newer[i];
    }
    for (int64_t i = 0; i < count; ++i) ids[i] = ids[i] < 0 ? kUnknownId : ids[i];
  }
}

void Vocabularies::FindTexts(const Text* texts, int64_t n, int64_t* ids) const {
  const TextIndex& base = layers_.front()->texts();
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
