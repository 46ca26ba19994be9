#include "engine/tensor_file.h"

#include <algorithm>
#include <limits>

#include "core/status.h"
#include "engine/json.h"
#include "rankhouse/engine.h"

namespace rankhouse::engine {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // as in safetensors

int64_t ElementBytes(const std::string& dtype) {
  static const std::map<std::string, int64_t> bytes = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2},
                                                       {"I64", 8}, {"U64", 8}, {"I32", 4}, {"U32", 4},
                                                       {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1}};
  const auto found = bytes.find(dtype);
  return found == bytes.end() ? 0 : found->second;
}

Tensor ParseTensor(const JsonObject& header, const std::string& name, const Json& value, int64_t data_begin) {
  const JsonObject fields(value, StrCat(header.where(), ": tensor '", name, "'"), header.status(),
                          {"dtype", "shape", "data_offsets"});
  Tensor tensor = {fields.Text("dtype"), {}, 0, 0};
  const int64_t element_bytes = ElementBytes(tensor.dtype);
  if (element_bytes == 0) fields.Refuse(StrCat("has the unknown dtype ", tensor.dtype));
  // Products are of sizes below 2^62 bytes, so that none overflows.
  int64_t bytes = element_bytes;
  for (const Json& size : fields.Array("shape")) {
    if (!size.is_number_integer() || size.get<int64_t>() < 0) fields.Refuse("has an impossible shape");
    const int64_t length = size.get<int64_t>();
    if (length != 0 && bytes > (int64_t{1} << 62) / length) fields.Refuse("is larger than any file");
    bytes *= length;
    tensor.shape.push_back(length);
  }
  const Json& offsets = fields.Array("data_offsets");
  if (offsets.size() != 2 || !offsets[0].is_number_integer() || !offsets[1].is_number_integer()) {
    fields.Refuse("has malformed data_offsets");
  }
  const int64_t begin = offsets[0].get<int64_t>();
  const int64_t end = offsets[1].get<int64_t>();
  if (begin < 0 || begin > (int64_t{1} << 62) || end < begin || end - begin != bytes) {
    fields.Refuse(StrCat("of ", bytes, " bytes lies at ", begin, " to ", end));
  }
  tensor.begin = data_begin + begin;
  tensor.end = data_begin + end;
  return tensor;
}

// No gaps, no overlaps, to the file's end.
void CheckPlaces(const JsonObject& header, const TensorFile& file, int64_t data_begin, int64_t file_bytes) {
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const auto& [name, tensor] : file.tensors) places.emplace_back(tensor.begin, tensor.end);
  std::sort(places.begin(), places.end());
  int64_t place = data_begin;
  for (const auto& [begin, end] : places) {
    if (begin != place) header.Refuse(StrCat("a tensor begins at byte ", begin, ", expected byte ", place));
    place = end;
  }
  if (place != file_bytes) header.Refuse(StrCat("its tensors end at byte ", place, " of ", file_bytes));
}

}  // namespace

TensorFile ReadTensorFile(const OpenFile& file) {
  const std::string where = StrCat(file.path(), ": is not a well-formed tensor file");
  const auto refuse = [&](const std::string& what) { throw Error(RH_CORRUPT, StrCat(where, ": ", what)); };
  if (file.bytes() < kLengthBytes) refuse(StrCat("it has ", file.bytes(), " bytes"));
  unsigned char length[kLengthBytes];
  file.Read(0, kLengthBytes, length);
  uint64_t header_bytes = 0;
  for (int64_t i = kLengthBytes - 1; i >= 0; --i) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > kMaxHeaderBytes || static_cast<int64_t>(header_bytes) > file.bytes() - kLengthBytes) {
    refuse(StrCat("its header is to have ", header_bytes, " bytes"));
  }
  std::string text(header_bytes, '\0');
  file.Read(kLengthBytes, text.size(), text.data());
  const Json value = ParseJson(text, where, RH_CORRUPT);
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  std::vector<std::string> names;
  for (const auto& item : value.items()) names.push_back(item.key());
  const JsonObject header(value, where, RH_CORRUPT, names);
  TensorFile found;
  for (const auto& item : value.items()) {
    if (item.key() == "__metadata__") {
      const JsonObject metadata(item.value(), where, RH_CORRUPT, [&] {
        std::vector<std::string> keys;
        for (const auto& entry : item.value().items()) keys.push_back(entry.key());
        return keys;
      }());
      for (const auto& entry : item.value().items()) found.metadata[entry.key()] = metadata.Text(entry.key().c_str());
    } else {
      found.tensors[item.key()] = ParseTensor(header, item.key(), item.value(), data_begin);
    }
  }
  CheckPlaces(header, found, data_begin, file.bytes());
  return found;
}

}  // namespace rankhouse::engine
