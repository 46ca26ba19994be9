#include "engine/manifest.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <ctime>
#include <set>

#include "core/status.h"
#include "engine/json.h"
#include "rankhouse/engine.h"

namespace rankhouse::engine {
namespace {

constexpr int64_t kFormatVersion = 1;
constexpr char kAgain[] = "; export the version again";

const std::vector<std::string> kKeys = {"format", "format_version", "model",   "sequence",   "parent",
                                        "origin", "source",         "dense",   "created_at", "vocabularies",
                                        "tables", "features",       "metrics", "files"};

JsonObject Part(const JsonObject& document, const Json& value, const std::string& what,
                const std::vector<std::string>& known) {
  return JsonObject(value, StrCat(document.where(), ": ", what), document.status(), known);
}

FileRecord ParseFile(const JsonObject& file) {
  FileRecord record = {file.Integer("bytes", 0), file.Text("sha256")};
  if (!IsSha256(record.sha256)) file.Refuse(StrCat("names a file of an impossible SHA-256, '", record.sha256, "'"));
  return record;
}

// Names stand in paths: none may reach outside its folder.
void CheckFileName(const JsonObject& document, const std::string& name) {
  bool good = !name.empty() && name != "manifest.json" && name[0] != '/' && name.back() != '/';
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    good &= !part.empty() && part != "." && part != ".." && part.find('\\') == std::string::npos;
    begin = end + 1;
  }
  for (const char c : name) good &= static_cast<unsigned char>(c) >= ' ' && c != 127;
  if (!good) document.Refuse(StrCat("names the file '", name, "', which is refused: it must lie inside the folder"));
}

bool IsModelName(const std::string& name) {
  const auto fits = [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '-' || c == '_'); };
  return !name.empty() && std::isalnum(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), fits);
}

void ParseSegments(const JsonObject& table, TableRecord* record) {
  int64_t row = 0;
  for (const Json& value : table.Array("segments")) {
    const JsonObject segment = Part(table, value, "a segment", {"sha256", "bytes", "row_begin", "num_rows"});
    record->segments.push_back({ParseFile(segment), segment.Integer("row_begin", 0), segment.Integer("num_rows", 1)});
    if (record->segments.back().row_begin != row) {
      segment.Refuse(StrCat("begins at row ", record->segments.back().row_begin, ", expected row ", row));
    }
    row += record->segments.back().num_rows;
  }
  if (row < 1) table.Refuse("has no segments");
}

void ParseDeltas(const JsonObject& table, TableRecord* record) {
  if (!table.Has("deltas")) return;
  for (const Json& value : table.Array("deltas")) {
    const JsonObject delta = Part(table, value, "a delta", {"sha256", "bytes", "num_rows", "num_removed"});
    record->deltas.push_back({ParseFile(delta), delta.Integer("num_rows", 0), delta.Integer("num_removed", 0)});
  }
}

int32_t TypeOf(const JsonObject& table, const std::string& dtype) {
  const std::vector<std::string> names = {"float32", "float16", "bfloat16", "int8"};  // in the order of rh_row_type
  const auto found = std::find(names.begin(), names.end(), dtype);
  if (found == names.end()) {
    table.Refuse(StrCat("has the dtype '", dtype, "'; this release reads float32, float16, bfloat16, int8"));
  }
  return static_cast<int32_t>(found - names.begin());
}

TableRecord ParseTable(const JsonObject& document, const Json& value) {
  const JsonObject table = Part(document, value, "a table", {"name", "num_rows", "dim", "dtype", "segments", "deltas"});
  TableRecord record = {};
  record.name = table.Text("name");
  record.num_rows = table.Integer("num_rows", 1);
  record.dim = table.Integer("dim", 1);
  record.dtype = table.Text("dtype");
  record.type = TypeOf(table, record.dtype);
  if (record.row_bytes() == 0) table.Refuse(StrCat("'", record.name, "' is too wide: ", record.dim));
  ParseSegments(table, &record);
  ParseDeltas(table, &record);
  const int64_t base_rows = record.segments.back().row_begin + record.segments.back().num_rows;
  int64_t held = base_rows;
  for (const DeltaRecord& delta : record.deltas) held += delta.num_rows + delta.num_removed;
  if (record.num_rows < base_rows || record.num_rows > held) {
    table.Refuse(StrCat("'", record.name, "' has ", record.num_rows, " rows, its segments ", base_rows,
                        " rows, its deltas ", held - base_rows));
  }
  return record;
}

void ParseTables(const JsonObject& document, Manifest* manifest) {
  std::set<std::string> names;
  for (const Json& value : document.Array("tables")) {
    manifest->tables.push_back(ParseTable(document, value));
    const std::string& name = manifest->tables.back().name;
    if (!names.insert(name).second) document.Refuse(StrCat("the table '", name, "' stands twice"));
  }
}

FeatureRecord ParseFeature(const JsonObject& document, const Json& value, const Manifest& manifest) {
  const JsonObject feature = Part(document, value, "a feature", {"name", "table", "combiner", "dim", "column_begin"});
  FeatureRecord record = {feature.Text("name"), 0, 0, feature.Integer("dim", 1), feature.Integer("column_begin", 0)};
  const std::string table = feature.Text("table");
  const std::string combiner = feature.Text("combiner");
  while (record.table < static_cast<int32_t>(manifest.tables.size()) && manifest.tables[record.table].name != table) {
    ++record.table;
  }
  if (record.table == static_cast<int32_t>(manifest.tables.size()) || (combiner != "sum" && combiner != "mean")) {
    feature.Refuse(StrCat("'", record.name, "' has table '", table, "', combiner '", combiner, "'"));
  }
  record.combiner = combiner == "sum" ? RH_SUM : RH_MEAN;
  return record;
}

void ParseFeatures(const JsonObject& document, Manifest* manifest) {
  std::set<std::string> names;
  int64_t column = 0;
  for (const Json& value : document.Array("features")) {
    const FeatureRecord record = ParseFeature(document, value, *manifest);
    if (!names.insert(record.name).second) document.Refuse(StrCat("the feature '", record.name, "' stands twice"));
    if (record.dim != manifest->tables[record.table].dim || record.column_begin != column) {
      document.Refuse(
          StrCat("the dim and column_begin of feature '", record.name, "' are not those of the tables, side by side"));
    }
    column += record.dim;
    manifest->features.push_back(record);
  }
}

void ParseDense(const JsonObject& document, Manifest* manifest) {
  const Json& value = document.At("dense");
  if (value.is_null()) return;
  const JsonObject dense = Part(document, value, "the dense part", {"file", "inputs", "output"});
  const JsonObject inputs = Part(dense, dense.At("inputs"), "inputs", {"dense", "embeddings"});
  manifest->num_dense = inputs.Integer("dense", 0);
  int64_t width = 0;
  for (const FeatureRecord& feature : manifest->features) width += feature.dim;
  if (inputs.Integer("embeddings", 0) != width || dense.Text("file") != "dense.onnx" ||
      dense.Text("output") != "scores") {
    dense.Refuse(StrCat(value.dump(), " does not take what the features give"));
  }
}

void ParseFiles(const JsonObject& document, Manifest* manifest) {
  if (document.Has("vocabularies")) {
    for (const Json& value : document.Array("vocabularies")) {
      manifest->vocabularies.push_back(ParseFile(Part(document, value, "a vocabulary", {"sha256", "bytes"})));
    }
  }
  const Json& files = document.At("files");
  if (!files.is_object()) document.Refuse(StrCat("expected an object under 'files', found ", files.type_name()));
  std::set<std::string> names;
  for (const auto& item : files.items()) {
    CheckFileName(document, item.key());
    names.insert(item.key());
    manifest->files[item.key()] =
        ParseFile(Part(document, item.value(), StrCat("the file '", item.key(), "'"), {"sha256", "bytes"}));
  }
  std::set<std::string> expected = {"transform.json", "golden.json"};
  if (manifest->num_dense) expected.insert("dense.onnx");
  if (manifest->vocabularies.empty()) expected.insert("transform.safetensors");
  if (names != expected) document.Refuse("names other files than its parts need");
}

void ParseOrigin(const JsonObject& document, Manifest* manifest) {
  const Json& parent = document.At("parent");
  if (!parent.is_null()) {
    const JsonObject fields = Part(document, parent, "the parent", {"name", "sha256"});
    manifest->parent_name = fields.Text("name");
    manifest->parent_sha256 = fields.Text("sha256");
    if (SequenceOf(manifest->parent_name) < 0 || !IsSha256(manifest->parent_sha256) ||
        manifest->parent_name.substr(manifest->parent_name.size() - 8) != manifest->parent_sha256.substr(0, 8)) {
      fields.Refuse("cannot be a version");
    }
  }
  if (document.Has("origin")) {
    const JsonObject origin = Part(document, document.At("origin"), "the origin", {"action", "version"});
    const std::string action = origin.Text("action");
    const std::set<std::string> known = {"export", "delta", "compact", "rollback", "import"};
    if (known.count(action) == 0) origin.Refuse(StrCat("has the unknown action '", action, "'"));
    if (origin.Has("version") && !origin.At("version").is_null()) origin.Text("version");
  }
  if (document.Has("source") && !document.At("source").is_null()) {
    const JsonObject source = Part(document, document.At("source"), "the source", {"run", "checkpoint", "step"});
    source.Text("run");
    source.Text("checkpoint");
    source.Integer("step", std::numeric_limits<int64_t>::min());
  }
}

// ISO 8601 as Python writes it: 2026-11-20T10:00:00.000+00:00, the fraction and the offset from UTC being optional.
void ParseTime(const JsonObject& document, Manifest* manifest) {
  manifest->created_at = document.Text("created_at");
  const std::string& text = manifest->created_at;
  std::tm time = {};
  int read = 0;
  const int found = std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &time.tm_year, &time.tm_mon, &time.tm_mday,
                                &time.tm_hour, &time.tm_min, &time.tm_sec, &read);
  if (found != 6) document.Refuse(StrCat("created_at is '", text, "': expected ISO 8601 in UTC"));
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  double fraction = 0;
  int more = 0;
  if (text[read] == '.' && std::sscanf(text.c_str() + read, "%lf%n", &fraction, &more) == 1) read += more;
  const std::string offset = text.substr(read);
  if (!offset.empty() && offset != "Z" && offset != "+00:00") {
    document.Refuse(StrCat("created_at is '", text, "': expected ISO 8601 in UTC"));
  }
  manifest->created_seconds = static_cast<double>(timegm(&time)) + fraction;
}

void CheckFormat(const JsonObject& document) {
  if (document.Text("format") != "rankhouse.version") {
    document.Refuse(StrCat("expected the format 'rankhouse.version', found '", document.Text("format"),
                           "'; is it the right folder?"));
  }
  const int64_t version = document.Integer("format_version", 1);
  if (version > kFormatVersion) {
    document.Refuse(StrCat("has format_version ", version, ", this release reads up to ", kFormatVersion,
                           "; use a newer Rankhouse"));
  }
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

Manifest ReadManifest(const std::string& folder, const std::string& name) {
  Manifest manifest = {};
  manifest.path = folder + "/manifest.json";
  std::string content;
  try {
    content = OpenFile(manifest.path).ReadAll();
  } catch (const Error& error) {
    throw Error(RH_BAD_MANIFEST, error.what());
  }
  manifest.sha256 = Sha256Of(content);
  const bool is_complete = name[0] != '.';
  if (is_complete && name.substr(name.size() - 8) != manifest.sha256.substr(0, 8)) {
    throw Error(RH_BAD_MANIFEST, StrCat(manifest.path, ": was altered: its SHA-256 begins with ",
                                        manifest.sha256.substr(0, 8), ", the version's name ends with another; ",
                                        "restore the version from another copy of the store"));
  }
  const Json value = ParseJson(content, manifest.path, RH_BAD_MANIFEST);
  try {
    const JsonObject document(value, manifest.path, RH_BAD_MANIFEST, kKeys);
    CheckFormat(document);
    manifest.model = document.Text("model");
    if (!IsModelName(manifest.model)) document.Refuse(StrCat("'", manifest.model, "' cannot be a model's name"));
    const int64_t sequence = document.Integer("sequence", 1);
    if (is_complete && sequence != SequenceOf(name)) document.Refuse(StrCat("has the sequence ", sequence));
    ParseTables(document, &manifest);
    ParseFeatures(document, &manifest);
    ParseDense(document, &manifest);
    ParseFiles(document, &manifest);
    ParseOrigin(document, &manifest);
    ParseTime(document, &manifest);
    if (!document.At("metrics").is_object()) document.Refuse("expected an object under 'metrics'");
  } catch (const Error& error) {
    throw Error(error.status(), StrCat(error.what(), kAgain));
  }
  return manifest;
}

}  // namespace rankhouse::engine
