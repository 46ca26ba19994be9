#include "onnx_runtime.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "failure.h"

namespace rankhouse::triton {
namespace {

// ONNX Runtime's C interface is a table of functions, which only ever grows at its end, so that places in it are for
// good. These are places and enumerators of its first version (onnxruntime_c_api.h).
enum Function {
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kCreateSession = 7,
  kRun = 9,
  kCreateSessionOptions = 10,
  kSetIntraOpNumThreads = 24,
  kSetInterOpNumThreads = 25,
  kCreateTensorWithData = 49,
  kGetTensorMutableData = 51,
  kGetTensorShapeElementCount = 64,
  kGetTensorTypeAndShape = 65,
  kCreateCpuMemoryInfo = 69,
  kReleaseStatus = 93,
  kReleaseSession = 95,
  kReleaseValue = 96,
  kReleaseTensorTypeAndShapeInfo = 99,
  kReleaseSessionOptions = 100
};
constexpr uint32_t kFirstVersion = 1;
constexpr int kLogErrors = 3, kArenaAllocator = 1, kDefaultMemory = 0, kFloat = 1;

struct ApiBase {
  void* const* (*get_api)(uint32_t version);
  const char* (*get_version)();
};

}  // namespace

// The library, loaded, and what all its sessions share. Its objects are opaque: a void* each.
class OnnxRuntime {
 public:
  // One for each path, for good: a library with threads of its own cannot be unloaded safely.
  static const OnnxRuntime& At(const std::string& path) {
    static std::mutex mutex;
    static std::map<std::string, std::unique_ptr<OnnxRuntime>> loaded;
    const std::lock_guard<std::mutex> lock(mutex);
    auto& runtime = loaded[path];
    if (runtime == nullptr) runtime.reset(new OnnxRuntime(path));
    return *runtime;
  }

  // Calls a function that returns a status.
  template <typename... Arguments>
  void Call(Function function, Arguments... arguments) const {
    void* status = reinterpret_cast<void* (*)(Arguments...)>(api_[function])(arguments...);
    if (status == nullptr) return;
    const Failure failure(TRITONSERVER_ERROR_INTERNAL,
                          reinterpret_cast<const char* (*)(const void*)>(api_[kGetErrorMessage])(status));
    Release(kReleaseStatus, status);
    throw failure;
  }

  void Release(Function function, void* object) const {
    if (object != nullptr) reinterpret_cast<void (*)(void*)>(api_[function])(object);
  }

  void* env() const { return env_; }
  void* memory() const { return memory_; }

 private:
  explicit OnnxRuntime(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    Require(library != nullptr, "ONNX Runtime cannot be loaded: ", library == nullptr ? dlerror() : "");
    const auto get_base = reinterpret_cast<const ApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
    const ApiBase* base = get_base == nullptr ? nullptr : get_base();
    Require(base != nullptr, path, " is no library of ONNX Runtime");
    api_ = base->get_api(kFirstVersion);
    Require(api_ != nullptr, path, " is ONNX Runtime ", base->get_version(), ", which no longer has version ",
            kFirstVersion, " of its interface; expected a release of 1.x");
    Call(kCreateEnv, kLogErrors, "rankhouse", &env_);
    Call(kCreateCpuMemoryInfo, kArenaAllocator, kDefaultMemory, &memory_);
  }

  void* const* api_;
  void* env_ = nullptr;
  void* memory_ = nullptr;
};

namespace {

// An object that ONNX Runtime gave, until it goes out of scope.
class Held {
 public:
  Held(const OnnxRuntime& runtime, Function release) : runtime_(runtime), release_(release) {}
  ~Held() { runtime_.Release(release_, object); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void* object = nullptr;

 private:
  const OnnxRuntime& runtime_;
  Function release_;
};

}  // namespace

DensePart::DensePart(const std::string& library, const std::string& path)
    : runtime_(OnnxRuntime::At(library)), path_(path) {
  Held options(runtime_, kReleaseSessionOptions);
  runtime_.Call(kCreateSessionOptions, &options.object);
  // As for the other steps: instances answer requests side by side.
  runtime_.Call(kSetIntraOpNumThreads, options.object, 1);
  runtime_.Call(kSetInterOpNumThreads, options.object, 1);
  runtime_.Call(kCreateSession, runtime_.env(), path.c_str(), options.object, &session_);
}

DensePart::~DensePart() { runtime_.Release(kReleaseSession, session_); }

void DensePart::Score(const std::array<Matrix, 2>& inputs, int64_t num_rows, float* scores) const {
  Held first(runtime_, kReleaseValue), second(runtime_, kReleaseValue), output(runtime_, kReleaseValue);
  Held shape(runtime_, kReleaseTensorTypeAndShapeInfo);
  Held* const values[2] = {&first, &second};
  for (size_t k = 0; k < inputs.size(); ++k) {
    const int64_t dims[2] = {num_rows, inputs[k].width};
    const size_t num_bytes = num_rows * inputs[k].width * sizeof(float);
    runtime_.Call(kCreateTensorWithData, runtime_.memory(), const_cast<float*>(inputs[k].data), num_bytes, &dims[0],
                  size_t{2}, kFloat, &values[k]->object);
  }
  const char* const names[2] = {inputs[0].name, inputs[1].name};
  const void* const tensors[2] = {first.object, second.object};
  const char* const output_name = "scores";
  runtime_.Call(kRun, session_, static_cast<void*>(nullptr), &names[0], &tensors[0], inputs.size(), &output_name,
                size_t{1}, &output.object);
  size_t count = 0;
  float* found = nullptr;
  runtime_.Call(kGetTensorTypeAndShape, output.object, &shape.object);
  runtime_.Call(kGetTensorShapeElementCount, shape.object, &count);
  Require(static_cast<int64_t>(count) == num_rows, path_, ": gives ", count, " scores for ", num_rows, " rows");
  runtime_.Call(kGetTensorMutableData, output.object, &found);
  std::copy(found, found + count, scores);
}

}  // namespace rankhouse::triton
