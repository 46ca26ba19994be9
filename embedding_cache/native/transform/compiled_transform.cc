#include "transform/compiled_transform.h"

#include <utility>

#include "format/mapped_file.h"

namespace rankhouse::transform {
namespace {

using format::Json;
using format::RequireIntact;

std::string ReadText(const std::string& path) {
  const format::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size())};
}

// The tensor files that transform.json names: transform.safetensors, transform.1.safetensors and so on.
std::vector<std::string> OwnLayers(const std::string& where, const std::string& folder, const Json& document) {
  std::vector<std::string> paths = {folder + "/transform.safetensors"};
  if (!document.contains("layers")) return paths;
  const Json& names = format::ArrayMember(where, document, "layers");
  paths.clear();
  for (const Json& name : names) {
    const std::string expected =
        paths.empty() ? "transform.safetensors" : StrCat("transform.", paths.size(), ".safetensors");
    RequireIntact(name == expected, where, "expected the layer '", expected, "', found ", name.dump(-1, ' ', true));
    paths.push_back(folder + "/" + expected);
  }
  RequireIntact(!paths.empty(), where, "expected the layers ['transform.safetensors'], found []");
  return paths;
}

}  // namespace

CompiledTransform CompiledTransform::Open(const std::string& folder, const std::vector<std::string>& layers) {
  const std::string path = folder + "/transform.json";
  const Json document = format::ParseObject(path, ReadText(path));
  format::CheckFormat(path, document, "transform");
  format::CheckKeys(path, document, {"format", "format_version", "features", "vocabularies", "layers"});
  const std::vector<std::string> own = OwnLayers(path, folder, document);
  RequireIntact(layers.empty() || !document.contains("layers") || layers.size() == own.size(), path, "has ", own.size(),
                " layers of vocabularies, was given ", layers.size());
  const std::vector<Feature> features = ParseFeatures(path, format::ArrayMember(path, document, "features"));
  return {path, features,
          Vocabularies(path, format::ObjectMember(path, document, "vocabularies"), layers.empty() ? own : layers)};
}

CompiledTransform::CompiledTransform(const std::string& where, const std::vector<Feature>& features,
                                     Vocabularies vocabularies)
    : vocabularies_(std::move(vocabularies)) {
  const TableNames& names = vocabularies_.names();
  for (const Feature& feature : features) {
    if (feature.is_continuous) {
      dense_.push_back(feature.steps);
      continue;
    }
    const bool is_int = feature.dtype == RawType::kInt64;
    RequireIntact(feature.dtype != RawType::kFloat64, where, "categorical feature '", feature.name,
                  "' has dtype 'float64'; expected 'int64' or 'text'");
    const int64_t table = is_int ? names.IntTableOf(feature.table) : names.TextTableOf(feature.table);
    RequireIntact(table >= 0, where, "categorical feature '", feature.name, "' has table '", feature.table,
                  "', which has no vocabulary of ", is_int ? "int64" : "text");
    std::vector<Column>& columns = is_int ? ints_ : texts_;
    columns.push_back({feature.name, feature.is_list, static_cast<int64_t>(sources_.size()), table});
    sources_.push_back({!is_int, feature.is_list, static_cast<int64_t>(columns.size()) - 1});
    has_lists_ |= feature.is_list;
  }
}

rh_transform_shape CompiledTransform::shape() const {
  const auto num_ints = static_cast<int64_t>(ints_.size()), num_texts = static_cast<int64_t>(texts_.size());
  return {static_cast<int64_t>(dense_.size()), num_ints, num_texts, num_ints + num_texts};
}

}  // namespace rankhouse::transform
