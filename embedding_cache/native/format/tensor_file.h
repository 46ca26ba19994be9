// A safetensors file, mapped into memory. All that its header says is checked when it is opened, so that no tensor
// reaches outside of the file.
#ifndef RANKHOUSE_FORMAT_TENSOR_FILE_H_
#define RANKHOUSE_FORMAT_TENSOR_FILE_H_

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "format/mapped_file.h"

namespace rankhouse::format {

// Elements that lie in a file, on any byte. It does not own them.
template <typename T>
class ArrayView {
 public:
  ArrayView() = default;
  ArrayView(const std::byte* data, int64_t size) : data_(data), size_(size) {}

  int64_t size() const { return size_; }
  const std::byte* address(int64_t index) const { return data_ + index * static_cast<int64_t>(sizeof(T)); }
  T operator[](int64_t index) const {
    T value;
    std::memcpy(&value, address(index), sizeof(T));
    return value;
  }
  T back() const { return (*this)[size_ - 1]; }

 private:
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

struct Tensor {
  std::string dtype;  // the format's name, such as "I64"
  std::vector<int64_t> shape;
  int64_t begin = 0;  // in the file
  int64_t bytes = 0;
};

// Any thread may read it.
class TensorFile {
 public:
  // Throws Error: RH_CORRUPT where the file is missing or no well-formed tensor file.
  explicit TensorFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::string& identity() const { return file_.identity(); }
  const std::byte* data() const { return file_.data(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  // Throws Error: RH_CORRUPT where the file does not have it.
  const Tensor& tensor(const std::string& name) const;
  // A tensor of one dimension. Throws Error: RH_CORRUPT where it is missing or of another dtype or shape.
  template <typename T>
  ArrayView<T> array(const std::string& name, const char* dtype) const {
    return ArrayView<T>(data() + Flat(name, dtype).begin, Flat(name, dtype).shape[0]);
  }

 private:
  const Tensor& Flat(const std::string& name, const char* dtype) const;

  MappedFile file_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace rankhouse::format

#endif  // RANKHOUSE_FORMAT_TENSOR_FILE_H_
