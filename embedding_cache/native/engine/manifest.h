// What a version's manifest says (FORMAT.md, "Manifest of a version").
#ifndef RANKHOUSE_ENGINE_MANIFEST_H_
#define RANKHOUSE_ENGINE_MANIFEST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/files.h"

namespace rankhouse::engine {

// Consecutive rows of a table, in a file.
struct SegmentRecord {
  FileRecord file;
  int64_t row_begin;
  int64_t num_rows;
};

// Changed rows of a table, in a file.
struct DeltaRecord {
  FileRecord file;
  int64_t num_rows;
  int64_t num_removed;
};

struct TableRecord {
  std::string name;
  int64_t num_rows;
  int64_t dim;
  std::string dtype;
  int32_t type;  // the rh_row_type of dtype
  std::vector<SegmentRecord> segments;
  std::vector<DeltaRecord> deltas;

  int64_t row_bytes() const;
  int64_t num_files() const { return static_cast<int64_t>(segments.size() + deltas.size()); }
  const FileRecord& file(int64_t number) const;  // base first, then deltas

  // The name of the table's state before file `number`: the SHA-256 over the names of all files before it, a line each.
  std::string ChainBefore(int64_t number) const;

  // Whether `later` is this one with more deltas, or none.
  bool IsBeginningOf(const TableRecord& later) const;
};

struct FeatureRecord {
  std::string name;
  int32_t table;     // its number
  int32_t combiner;  // RH_SUM or RH_MEAN
  int64_t dim;
  int64_t column_begin;
};

struct Manifest {
  std::string path;    // of the manifest
  std::string sha256;  // of its bytes
  std::string model;
  std::string created_at;
  double created_seconds;  // since 1970
  std::optional<int64_t> num_dense;
  std::string parent_name;  // "" if it is whole
  std::string parent_sha256;
  std::vector<FileRecord> vocabularies;
  std::vector<TableRecord> tables;
  std::vector<FeatureRecord> features;
  std::map<std::string, FileRecord> files;  // in the version's folder, by name
};

// A number of a version in its name: `<sequence, 6 digits or more>-<8 hexadecimal digits>`; -1 if it is no such name.
int64_t SequenceOf(const std::string& name);

// Whether a name ends as that of a version whose manifest has this SHA-256 does.
bool IsNameOf(const std::string& name, const std::string& sha256);

// Reads the manifest of the version `name`, whose folder is given. The files that it names are not looked at. Throws
// Error RH_BAD_MANIFEST.
Manifest ReadManifest(const std::string& folder, const std::string& name);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_MANIFEST_H_
