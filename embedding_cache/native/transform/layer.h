// What one tensor file holds of the vocabularies (FORMAT.md, "Layers").
#ifndef RANKHOUSE_TRANSFORM_LAYER_H_
#define RANKHOUSE_TRANSFORM_LAYER_H_

#include <memory>
#include <string>
#include <vector>

#include "format/tensor_file.h"
#include "transform/int_table.h"
#include "transform/text_index.h"

namespace rankhouse::transform {

// The tables of a transform, in the order in which transform.json names them.
struct TableNames {
  std::vector<std::string> ints;
  std::vector<std::string> texts;

  // The number of a table among those of its kind; -1 where there is none of this name.
  int64_t IntTableOf(const std::string& name) const;
  int64_t TextTableOf(const std::string& name) const;
};

// Immutable; any thread may use it.
class Layer {
 public:
  // Integers of a table as they lie in the file, sorted, and their ids.
  struct Ints {
    format::ArrayView<int64_t> values;
    format::ArrayView<int64_t> ids;
  };

  // Opens a layer, or shares it with who has opened the same file before and still uses it: versions of one chain have
  // all layers but the last in common. Throws Error: RH_CORRUPT where the file is missing or malformed, or lacks a
  // table.
  static std::shared_ptr<const Layer> Open(const std::string& path, const TableNames& names, bool is_first);

  const std::string& path() const { return file_.path(); }
  const Ints& ints(int64_t table) const { return ints_[table]; }
  const IntTable& int_table(int64_t table) const { return int_tables_[table]; }  // of the first layer alone
  const TextIndex& texts() const { return texts_; }
  int64_t text_id(int64_t number) const { return text_ids_[number]; }  // of a later layer

  // The ids that a later layer gives in a table; kRemoved where a value loses its own.
  format::ArrayView<int64_t> ChangedIds(const TableNames& names, const std::string& table) const;
  // The ids of the values that lose theirs.
  format::ArrayView<int64_t> Freed(const std::string& table) const;

 private:
  Layer(const std::string& path, const TableNames& names, bool is_first);

  format::TensorFile file_;
  std::vector<Ints> ints_;
  std::vector<IntTable> int_tables_;
  TextIndex texts_;
  format::ArrayView<int64_t> text_ids_;
};

}  // namespace rankhouse::transform

#endif  // RANKHOUSE_TRANSFORM_LAYER_H_
