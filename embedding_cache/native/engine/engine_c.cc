// The C interface of the engine.
#include <atomic>
#include <memory>
#include <string>

#include "core/status.h"
#include "engine/engine.h"
#include "rankhouse/engine.h"

using rankhouse::Guard;
using rankhouse::Require;
using rankhouse::engine::Engine;
using rankhouse::engine::Version;

struct rh_engine {
  std::shared_ptr<Engine> engine;
};

// Whoever opened it holds it, and so does each call in flight; the last one to let go frees it.
struct rh_engine_version {
  std::shared_ptr<const Version> version;
  std::atomic<int64_t> holders{1};

  void Release() {
    if (holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

namespace {

class Hold {
 public:
  explicit Hold(rh_engine_version* version) : version_(version) {
    version_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  ~Hold() { version_->Release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  rh_engine_version* const version_;
};

}  // namespace

int rh_engine_abi_version(void) { return RH_ENGINE_ABI_VERSION; }

int rh_engine_create(const char* options, rh_engine** engine) {
  return Guard([&] {
    Require(engine != nullptr, "engine is NULL");
    *engine = new rh_engine{std::make_shared<Engine>(rankhouse::engine::ParseOptions(options))};
  });
}

void rh_engine_destroy(rh_engine* engine) { delete engine; }

int rh_engine_open(rh_engine* engine, const char* store, const char* name, int verify, rh_engine_version** version) {
  return Guard([&] {
    Require(engine != nullptr && store != nullptr && version != nullptr, "engine, store or version is NULL");
    *version = new rh_engine_version{engine->engine->Open(store, name == nullptr ? "" : name, verify != 0)};
  });
}

void rh_engine_close(rh_engine_version* version) {
  if (version != nullptr) version->Release();
}

int rh_engine_version_json(const rh_engine_version* version, const char** json) {
  return Guard([&] {
    Require(version != nullptr && json != nullptr, "version or json is NULL");
    *json = version->version->json().c_str();
  });
}

int rh_engine_lookup(rh_engine_version* version, const rh_engine_batch* batch, const rh_feature_rows* out,
                     rh_engine_answer* answer, const rh_executor* executor) {
  return Guard([&] {
    Require(version != nullptr && batch != nullptr, "version or batch is NULL");
    const Hold hold(version);
    rankhouse::engine::LookUp(*version->version, *batch, out, answer, executor);
  });
}

int rh_engine_lookup_matrix(rh_engine_version* version, const rh_engine_batch* batch, float* out, int64_t stride,
                            rh_engine_answer* answer, const rh_executor* executor) {
  return Guard([&] {
    Require(version != nullptr && batch != nullptr, "version or batch is NULL");
    const Hold hold(version);
    rankhouse::engine::LookUpMatrix(*version->version, *batch, out, stride, answer, executor);
  });
}

int rh_engine_lookup_cuda(rh_engine_version* version, const rh_engine_batch* batch, const rh_feature_rows* out,
                          rh_engine_answer* answer, const rh_executor* executor, void* stream) {
  return Guard([&] {
    Require(version != nullptr && batch != nullptr, "version or batch is NULL");
    const Hold hold(version);
    rankhouse::engine::LookUpCuda(*version->version, *batch, out, answer, executor, stream);
  });
}

int rh_engine_gather(rh_engine_version* version, int32_t table, const int64_t* ids, int64_t n, float* out,
                     rh_engine_answer* answer, const rh_executor* executor) {
  return Guard([&] {
    Require(version != nullptr, "version is NULL");
    const Hold hold(version);
    rankhouse::engine::Gather(*version->version, table, ids, n, out, answer, executor);
  });
}

int rh_engine_metrics(rh_engine* engine, char* text, int64_t capacity, int64_t* size) {
  return Guard([&] {
    Require(engine != nullptr && size != nullptr && (text != nullptr || capacity == 0), "engine, size or text is NULL");
    const std::string metrics = engine->engine->Metrics();
    *size = static_cast<int64_t>(metrics.size()) + 1;
    const bool fits = *size <= capacity;
    if (fits) metrics.copy(text, metrics.size());
    if (capacity > 0) text[fits ? metrics.size() : 0] = '\0';
  });
}
