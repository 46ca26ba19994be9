#include "format/tensor_file.h"

#include <algorithm>
#include <utility>

#include "format/json.h"

namespace rankhouse::format {
namespace {

constexpr int64_t kLengthBytes = 8;  // The file begins with the header's length, an unsigned 64-bit integer.
constexpr int64_t kMaxHeaderBytes = 100'000'000;

const std::map<std::string, int64_t>& BytesOfDtypes() {
  static const std::map<std::string, int64_t> bytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"U16", 2}, {"I16", 2}, {"F16", 2}, {"BF16", 2},
      {"U32", 4},  {"I32", 4}, {"F32", 4}, {"U64", 8}, {"I64", 8}, {"F64", 8},
  };
  return bytes;
}

template <typename... Parts>
void RequireWellFormed(bool condition, const std::string& path, const Parts&... parts) {
  RequireIntact(condition, path, "is not a well-formed tensor file (", parts...,
                "); restore it from another copy or write it again");
}

std::vector<int64_t> Naturals(const std::string& path, const std::string& name, const Json& entry, const char* key) {
  std::vector<int64_t> naturals;
  for (const Json& value : ArrayMember(StrCat(path, ": tensor '", name, "'"), entry, key)) {
    const bool is_natural = value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    RequireWellFormed(is_natural, path, "tensor '", name, "' has ", key, " ", value.dump(-1, ' ', true));
    naturals.push_back(value.get<int64_t>());
  }
  return naturals;
}

// Where the tensor's bytes begin among those of all tensors, and that they are as many as it needs.
Tensor TensorOf(const std::string& path, const std::string& name, const Json& entry) {
  RequireWellFormed(entry.is_object(), path, "tensor '", name, "' is ", entry.type_name());
  const std::string where = StrCat(path, ": tensor '", name, "'");
  CheckKeys(where, entry, {"dtype", "shape", "data_offsets"});
  Tensor tensor;
  tensor.dtype = StringMember(where, entry, "dtype");
  tensor.shape = Naturals(path, name, entry, "shape");
  const auto dtype = BytesOfDtypes().find(tensor.dtype);
  RequireWellFormed(dtype != BytesOfDtypes().end(), path, "tensor '", name, "' has the unknown dtype ", tensor.dtype);
  const std::vector<int64_t> offsets = Naturals(path, name, entry, "data_offsets");
  RequireWellFormed(offsets.size() == 2 && offsets[0] <= offsets[1], path, "tensor '", name, "' has data_offsets ",
                    Member(where, entry, "data_offsets").dump());
  tensor.begin = offsets[0];
  tensor.bytes = offsets[1] - offsets[0];
  int64_t bytes = dtype->second;
  for (const int64_t extent : tensor.shape) {
    RequireWellFormed(!__builtin_mul_overflow(bytes, extent, &bytes), path, "tensor '", name, "' is too large");
  }
  RequireWellFormed(bytes == tensor.bytes, path, "tensor '", name, "' has ", tensor.bytes, " bytes, expected ", bytes);
  return tensor;
}

}  // namespace

TensorFile::TensorFile(const std::string& path) : file_(path) {
  RequireWellFormed(file_.size() >= kLengthBytes, path, "it has ", file_.size(), " bytes");
  const auto header_bytes = static_cast<int64_t>(ArrayView<uint64_t>(data(), 1)[0]);
  RequireWellFormed(header_bytes >= 0 && header_bytes <= std::min(kMaxHeaderBytes, file_.size() - kLengthBytes), path,
                    "its header has ", header_bytes, " bytes, the file ", file_.size());
  const auto* header = reinterpret_cast<const char*>(data()) + kLengthBytes;
  const Json entries = ParseObject(path, {header, static_cast<size_t>(header_bytes)});
  std::vector<std::pair<int64_t, int64_t>> stretches;
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") {
      RequireWellFormed(entry.is_object(), path, "its __metadata__ is ", entry.type_name());
      for (const auto& [key, value] : entry.items()) metadata_[key] = StringMember(path, entry, key);
      continue;
    }
    Tensor tensor = TensorOf(path, name, entry);
    stretches.emplace_back(tensor.begin, tensor.begin + tensor.bytes);
    tensor.begin += kLengthBytes + header_bytes;
    tensors_[name] = std::move(tensor);
  }
  // They lie one after the other and fill the file, so that each byte is a tensor's and none is two tensors'.
  std::sort(stretches.begin(), stretches.end());
  int64_t end = 0;
  for (const auto& [begin, own_end] : stretches) {
    RequireWellFormed(begin == end, path, "its tensors leave a gap or overlap at byte ", begin);
    end = own_end;
  }
  const int64_t data_bytes = file_.size() - kLengthBytes - header_bytes;
  RequireWellFormed(end == data_bytes, path, "its tensors have ", end, " bytes, the file has ", data_bytes);
}

const Tensor& TensorFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  RequireIntact(found != tensors_.end(), path(), "lacks the tensor '", name, "'");
  return found->second;
}

const Tensor& TensorFile::Flat(const std::string& name, const char* dtype) const {
  const Tensor& found = tensor(name);
  RequireIntact(found.dtype == dtype && found.shape.size() == 1, path(), name, " is ", found.dtype, " of ",
                found.shape.size(), " dimensions; expected ", dtype, " of one dimension");
  return found;
}

}  // namespace rankhouse::format
