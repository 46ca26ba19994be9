// A version that is open in the engine.
#ifndef RANKHOUSE_TRITON_BACKEND_SERVED_VERSION_H_
#define RANKHOUSE_TRITON_BACKEND_SERVED_VERSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rankhouse/engine.h"
#include "rankhouse/transform.h"

namespace rankhouse::triton {

// Requests are small, and instances answer them side by side: more threads for one would be taken from the others.
constexpr rh_executor kOneThread = {nullptr, nullptr, 1, nullptr};

struct CloseVersion {
  void operator()(rh_engine_version* version) const { rh_engine_close(version); }
};
struct CloseTransform {
  void operator()(rh_transform* transform) const { rh_transform_close(transform); }
};
using VersionHandle = std::unique_ptr<rh_engine_version, CloseVersion>;
using TransformHandle = std::unique_ptr<rh_transform, CloseTransform>;

// Immutable; any thread may use it. It is closed with this object.
class ServedVersion {
 public:
  // Opens the version of a store, a folder. Whoever wrote the model has verified the files' checksums; here their sizes
  // are compared. Throws Failure if there is no such version or a file is not what the manifest says.
  ServedVersion(rh_engine* engine, const std::string& store, const std::string& name);

  // F and E.
  int64_t num_features() const { return static_cast<int64_t>(column_begins_.size()); }
  int64_t num_columns() const { return num_columns_; }
  // How many continuous features there are, and the path of the dense part, an ONNX file.
  int64_t num_dense() const { return num_dense_; }
  std::string dense_path() const { return folder_ + "/dense.onnx"; }

  // Opens its compiled transform, which the caller owns.
  TransformHandle OpenTransform() const;

  // Pools a batch into embeddings [B, E], the features side by side. Returns whether they are degraded: default rows
  // stand in for rows that a tier of the engine did not give.
  bool Lookup(const rh_engine_batch& batch, float* embeddings) const;
  // The same on the engine's GPU, where `embeddings` lie: queues work on the stream, a cudaStream_t.
  bool LookupOnDevice(const rh_engine_batch& batch, float* embeddings, void* stream) const;

 private:
  std::vector<rh_feature_rows> Columns(float* embeddings) const;

  VersionHandle version_;
  std::string folder_;
  std::vector<std::string> layers_;     // the tensor files of the vocabularies; none: they lie in the folder
  std::vector<int64_t> column_begins_;  // [F]
  int64_t num_columns_ = 0;
  int64_t num_dense_ = 0;
};

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_SERVED_VERSION_H_
