// The vocabularies of all tables: which raw value has which id.
//
// Ids of every table: 0 padding, 1 a missing value, 2 an unknown one, 3 and on the known values. Vocabularies grow by
// layers: the first holds all values of the fit, each later one only what changed, and the newest that has a value
// decides.
#ifndef RANKHOUSE_TRANSFORM_VOCABULARIES_H_
#define RANKHOUSE_TRANSFORM_VOCABULARIES_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "format/json.h"
#include "format/tensor_file.h"
#include "transform/int_index.h"
#include "transform/text_index.h"

namespace rankhouse::transform {

constexpr int64_t kMissingId = 1;
constexpr int64_t kUnknownId = 2;
constexpr int64_t kFirstKnownId = 3;

// Immutable; any thread may use it.
class Vocabularies {
 public:
  // where: the path of transform.json. document: its `vocabularies`. layers: the tensor files, the oldest first, 1 or
  // more. Throws Error: RH_CORRUPT where a file is missing or malformed, or they do not fit each other.
  Vocabularies(const std::string& where, const format::Json& document, const std::vector<std::string>& layers);

  // The number of a table of integers, or of texts; -1 where there is none of this name.
  int64_t IntTable(const std::string& name) const;
  int64_t TextTable(const std::string& name) const;

  // Turns n integers of a table into ids, in place.
  void FindInts(int64_t table, int64_t* values, int64_t n) const;
  // Looks n <= kMaxTexts texts up.
  void FindTexts(const Text* texts, int64_t n, int64_t* ids) const;

 private:
  // What one tensor file holds: for each table of integers an index, and one of all texts.
  struct Layer {
    Layer(const std::string& path, bool is_first, const Vocabularies& vocabularies);
    format::TensorFile file;
    std::vector<IntIndex> ints;
    TextIndex texts;
    format::ArrayView<int64_t> text_ids;  // of each text; in the first layer without elements
  };
  // Integers that later layers changed, each once, with the id that the newest gives.
  struct IntChanges {
    std::vector<int64_t> values;
    std::vector<int64_t> ids;
    IntIndex index;
  };

  void CheckRows(const std::string& where, const format::Json& document) const;
  int64_t NumRows(const std::string& name) const;
  format::ArrayView<int64_t> ChangedIds(const Layer& layer, const std::string& name) const;
  IntChanges MergedInts(size_t table) const;
  std::unique_ptr<TextChanges> MergedTexts() const;

  std::vector<std::string> int_tables_;
  std::vector<std::string> text_tables_;
  std::vector<std::unique_ptr<const Layer>> layers_;
  std::vector<IntChanges> int_changes_;        // of each table of integers; empty where there is one layer
  std::unique_ptr<TextChanges> text_changes_;  // NULL where the later layers have no texts
};

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_VOCABULARIES_H_
