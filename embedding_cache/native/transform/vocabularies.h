// The vocabularies of all tables: which raw value has which id.
//
// Ids of every table: 0 padding, 1 a missing value, 2 an unknown one, 3 and on the known values. Vocabularies grow by
// layers: the first holds all values of the fit, each later one only what changed, and the newest that has a value
// decides.
#ifndef RANKHOUSE_TRANSFORM_VOCABULARIES_H_
#define RANKHOUSE_TRANSFORM_VOCABULARIES_H_

#include <memory>
#include <string>
#include <vector>

#include "format/json.h"
#include "transform/int_table.h"
#include "transform/layer.h"
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

  const TableNames& names() const { return names_; }

  // Turns n integers of a table into ids, in place.
  void FindInts(int64_t table, int64_t* values, int64_t n) const;
  // Looks n <= kMaxTexts texts up.
  void FindTexts(const Text* texts, int64_t n, int64_t* ids) const;

 private:
  void CheckRows(const std::string& where, const format::Json& document) const;
  int64_t NumRows(const std::string& table) const;
  IntTable MergedInts(size_t table) const;
  std::unique_ptr<TextChanges> MergedTexts() const;

  TableNames names_;
  std::vector<std::shared_ptr<const Layer>> layers_;
  // What the later layers say, as one: then many of them cost a batch what one does.
  std::vector<IntTable> int_changes_;          // of each table of integers; without elements where there is one layer
  std::unique_ptr<TextChanges> text_changes_;  // NULL where the later layers have no texts
};

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_VOCABULARIES_H_
