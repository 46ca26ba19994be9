#include "engine/manifest.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <ctime>
#include <limits>
#include <set>

#include "core/status.h"
#include "engine/json.h"
#include "rankhouse/engine.h"

namespace rankhouse::engine {
namespace {

FileRecord ParseFile(const JsonObject& file) {
  FileRecord record = {file.Integer("bytes", 0), file.Text("sha256")};
  file.Check(IsSha256(record.sha256), "names a file of an impossible SHA-256, '", record.sha256, "'");
  return record;
}

bool IsModelName(const std::string& name) {
  const auto fits = [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '-' || c == '_'); };
  return !name.empty() && name[0] != '-' && name[0] != '_' && std::all_of(name.begin(), name.end(), fits);
}

// Returns how many rows the base has.
int64_t ParseSegments(const JsonObject& table, TableRecord* record) {
  int64_t row = 0;
  for (const Json& value : table.Array("segments")) {
    const JsonObject segment = table.Part(value, "a segment", {"sha256", "bytes", "row_begin", "num_rows"});
    const SegmentRecord& added = record->segments.emplace_back(
        SegmentRecord{ParseFile(segment), segment.Integer("row_begin", 0), segment.Integer("num_rows", 1)});
    segment.Check(added.row_begin == row, "begins at row ", added.row_begin, ", expected row ", row);
    segment.Check(!__builtin_add_overflow(row, added.num_rows, &row), "has an impossible num_rows");
  }
  table.Check(row > 0, "has no segments");
  return row;
}

// Returns how many rows the deltas hold or remove.
int64_t ParseDeltas(const JsonObject& table, TableRecord* record) {
  int64_t held = 0;
  if (!table.Has("deltas")) return held;
  for (const Json& value : table.Array("deltas")) {
    const JsonObject delta = table.Part(value, "a delta", {"sha256", "bytes", "num_rows", "num_removed"});
    const DeltaRecord& added = record->deltas.emplace_back(
        DeltaRecord{ParseFile(delta), delta.Integer("num_rows", 0), delta.Integer("num_removed", 0)});
    delta.Check(
        !__builtin_add_overflow(held, added.num_rows, &held) && !__builtin_add_overflow(held, added.num_removed, &held),
        "has an impossible size");
  }
  return held;
}

TableRecord ParseTable(const JsonObject& document, const Json& value) {
  const JsonObject table = document.Part(value, "a table", {"name", "num_rows", "dim", "dtype", "segments", "deltas"});
  TableRecord record = {};
  record.name = table.Text("name");
  record.num_rows = table.Integer("num_rows", 1);
  record.dim = table.Integer("dim", 1);
  record.dtype = table.Text("dtype");
  const std::vector<std::string> types = {"float32", "float16", "bfloat16", "int8"};  // in the order of rh_row_type
  record.type = static_cast<int32_t>(std::find(types.begin(), types.end(), record.dtype) - types.begin());
  table.Check(record.type < static_cast<int32_t>(types.size()), "'", record.name, "' has dtype '", record.dtype,
              "'; this release reads float32, float16, bfloat16, int8");
  table.Check(record.row_bytes() > 0, "'", record.name, "' has an impossible dim, ", record.dim);
  const int64_t base_rows = ParseSegments(table, &record);
  const int64_t held = ParseDeltas(table, &record);
  table.Check(base_rows <= record.num_rows && record.num_rows - base_rows <= held, "'", record.name, "' has ",
              record.num_rows, " rows, its segments ", base_rows, " rows, its deltas ", held);
  return record;
}

void ParseTables(const JsonObject& document, Manifest* manifest) {
  std::set<std::string> names;
  for (const Json& value : document.Array("tables")) {
    manifest->tables.push_back(ParseTable(document, value));
    const std::string& name = manifest->tables.back().name;
    document.Check(names.insert(name).second, "the table '", name, "' stands twice");
  }
}

FeatureRecord ParseFeature(const JsonObject& document, const Json& value, const Manifest& manifest) {
  const JsonObject feature = document.Part(value, "a feature", {"name", "table", "combiner", "dim", "column_begin"});
  const std::string table = feature.Text("table");
  const std::string combiner = feature.Text("combiner");
  const auto is_its = [&](const TableRecord& record) { return record.name == table; };
  const auto found = std::find_if(manifest.tables.begin(), manifest.tables.end(), is_its);
  feature.Check(found != manifest.tables.end() && (combiner == "sum" || combiner == "mean"), "'", feature.Text("name"),
                "' has table '", table, "', combiner '", combiner, "'");
  return {feature.Text("name"), static_cast<int32_t>(found - manifest.tables.begin()),
          combiner == "sum" ? RH_SUM : RH_MEAN, feature.Integer("dim", 1), feature.Integer("column_begin", 0)};
}

void ParseFeatures(const JsonObject& document, Manifest* manifest) {
  std::set<std::string> names;
  int64_t column = 0;
  for (const Json& value : document.Array("features")) {
    const FeatureRecord record = ParseFeature(document, value, *manifest);
    document.Check(names.insert(record.name).second, "the feature '", record.name, "' stands twice");
    document.Check(record.dim == manifest->tables[record.table].dim && record.column_begin == column,
                   "the dim and column_begin of feature '", record.name, "' are not those of the tables, side by side");
    column += record.dim;
    manifest->features.push_back(record);
  }
}

void ParseDense(const JsonObject& document, Manifest* manifest) {
  if (document.At("dense").is_null()) return;
  const JsonObject dense = document.Part(document.At("dense"), "the dense part", {"file", "inputs", "output"});
  const JsonObject inputs = dense.Part(dense.At("inputs"), "inputs", {"dense", "embeddings"});
  manifest->num_dense = inputs.Integer("dense", 0);
  int64_t width = 0;
  for (const FeatureRecord& feature : manifest->features) width += feature.dim;
  dense.Check(inputs.Integer("embeddings", 0) == width && dense.Text("file") == "dense.onnx" &&
                  dense.Text("output") == "scores",
              "does not take what the features give");
}

void ParseFiles(const JsonObject& document, Manifest* manifest) {
  if (document.Has("vocabularies")) {
    for (const Json& value : document.Array("vocabularies")) {
      manifest->vocabularies.push_back(ParseFile(document.Part(value, "a vocabulary", {"sha256", "bytes"})));
    }
  }
  // Names stand in paths: there is none but these.
  std::set<std::string> expected = {"transform.json", "golden.json"};
  if (manifest->num_dense) expected.insert("dense.onnx");
  if (manifest->vocabularies.empty()) expected.insert("transform.safetensors");
  for (const auto& item : document.Object("files").items()) {
    document.Check(expected.erase(item.key()) == 1, "names the file '", item.key(), "', which no version has");
    const JsonObject file = document.Part(item.value(), "'" + item.key() + "'", {"sha256", "bytes"});
    manifest->files[item.key()] = ParseFile(file);
  }
  document.Check(expected.empty(), "does not name the file '", expected.empty() ? "" : *expected.begin(), "'");
}

void ParseParent(const JsonObject& document, Manifest* manifest) {
  if (document.At("parent").is_null()) return;
  const JsonObject parent = document.Part(document.At("parent"), "the parent", {"name", "sha256"});
  manifest->parent_name = parent.Text("name");
  manifest->parent_sha256 = parent.Text("sha256");
  parent.Check(SequenceOf(manifest->parent_name) >= 0 && IsSha256(manifest->parent_sha256) &&
                   IsNameOf(manifest->parent_name, manifest->parent_sha256),
               "cannot be a version");
}

// What the engine has no use for, but what is wrong with it may be wrong with the rest.
void CheckOrigin(const JsonObject& document) {
  if (document.Has("origin")) {
    const JsonObject origin = document.Part(document.At("origin"), "the origin", {"action", "version"});
    const std::set<std::string> known = {"export", "delta", "compact", "rollback", "import"};
    origin.Check(known.count(origin.Text("action")) == 1, "has the unknown action '", origin.Text("action"), "'");
  }
  if (document.Has("source") && !document.At("source").is_null()) {
    const JsonObject source = document.Part(document.At("source"), "the source", {"run", "checkpoint", "step"});
    source.Text("run");
    source.Text("checkpoint");
    source.Integer("step", std::numeric_limits<int64_t>::min());
  }
  document.Object("metrics");
}

// ISO 8601 in UTC, as Python writes it: 2026-11-20T10:00:00.000+00:00.
void ParseTime(const JsonObject& document, Manifest* manifest) {
  manifest->created_at = document.Text("created_at");
  const char* text = manifest->created_at.c_str();
  std::tm time = {};
  int read = 0;
  double fraction = 0;
  const int found = std::sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &time.tm_year, &time.tm_mon, &time.tm_mday,
                                &time.tm_hour, &time.tm_min, &time.tm_sec, &read);
  int more = 0;
  if (found == 6 && text[read] == '.' && std::sscanf(text + read, "%lf%n", &fraction, &more) == 1) read += more;
  document.Check(found == 6 && manifest->created_at.substr(read) == "+00:00", "created_at is '", text,
                 "': expected ISO 8601 in UTC");
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  manifest->created_seconds = static_cast<double>(timegm(&time)) + fraction;
}

void Parse(const std::string& name, const std::string& content, Manifest* manifest) {
  const Json value = format::ParseObject(manifest->path, content);
  format::CheckFormat(manifest->path, value, "version");
  const JsonObject document(value, manifest->path,
                            {"format", "format_version", "model", "sequence", "parent", "origin", "source",
                             "created_at", "dense", "vocabularies", "tables", "features", "metrics", "files"});
  manifest->model = document.Text("model");
  document.Check(IsModelName(manifest->model), "'", manifest->model, "' cannot be a model's name");
  const int64_t sequence = document.Integer("sequence", 1);
  document.Check(name[0] == '.' || sequence == SequenceOf(name), "has the sequence ", sequence, ", its name another");
  ParseTables(document, manifest);
  ParseFeatures(document, manifest);
  ParseDense(document, manifest);
  ParseFiles(document, manifest);
  ParseParent(document, manifest);
  ParseTime(document, manifest);
  CheckOrigin(document);
}

}  // namespace

int64_t TableRecord::row_bytes() const { return rh_row_bytes(type, dim); }

const FileRecord& TableRecord::file(int64_t number) const {
  const int64_t num_segments = static_cast<int64_t>(segments.size());
  return number < num_segments ? segments[number].file : deltas[number - num_segments].file;
}

std::string TableRecord::ChainBefore(int64_t number) const {
  std::string names;
  for (int64_t n = 0; n < number; ++n) names += file(n).sha256 + "\n";
  return Sha256Of(names);
}

bool TableRecord::IsBeginningOf(const TableRecord& later) const {
  bool same = name == later.name && dim == later.dim && dtype == later.dtype && num_rows <= later.num_rows &&
              segments.size() == later.segments.size() && num_files() <= later.num_files();
  for (int64_t n = 0; same && n < num_files(); ++n) same = file(n) == later.file(n);
  return same;
}

int64_t SequenceOf(const std::string& name) {
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  // 18 digits are below 2^63.
  if (digits < 6 || digits > 18 || name.size() != digits + 9 || name[digits] != '-' ||
      name.find_first_not_of("0123456789abcdef", digits + 1) != std::string::npos) {
    return -1;
  }
  return std::stoll(name.substr(0, digits));
}

bool IsNameOf(const std::string& name, const std::string& sha256) {
  return name.size() >= 8 && name.substr(name.size() - 8) == sha256.substr(0, 8);
}

Manifest ReadManifest(const std::string& folder, const std::string& name) {
  Manifest manifest = {};
  manifest.path = folder + "/manifest.json";
  try {
    const std::string content = OpenFile(manifest.path).ReadAll();
    manifest.sha256 = Sha256Of(content);
    if (name[0] != '.' && !IsNameOf(name, manifest.sha256)) {
      throw Error(RH_CORRUPT, StrCat(manifest.path, ": was altered: its SHA-256 begins with ",
                                     manifest.sha256.substr(0, 8), ", the version's name ends with another; restore ",
                                     "the version from another copy of the store"));
    }
    Parse(name, content, &manifest);
  } catch (const Error& error) {
    throw Error(RH_BAD_MANIFEST, error.what());
  }
  return manifest;
}

}  // namespace rankhouse::engine
