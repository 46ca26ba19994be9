// The C interface of the compiled transform.
#include <memory>

#include "core/status.h"
#include "rankhouse/transform.h"
#include "transform/compiled_transform.h"

using rankhouse::Guard;
using rankhouse::Require;

struct rh_transform {
  rankhouse::transform::CompiledTransform transform;
};

int rh_transform_open(const char* folder, const char* const* layers, int64_t num_layers, rh_transform** transform) {
  return Guard([&] {
    Require(transform != nullptr, "transform is NULL: expected where to put the opened one");
    *transform = nullptr;
    Require(folder != nullptr, "folder is NULL: expected the folder of transform.json");
    Require(num_layers >= 0 && (layers != nullptr || num_layers == 0), "num_layers is ", num_layers,
            ": expected 0 or more, and as many paths in layers");
    std::vector<std::string> paths;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      Require(layers[layer] != nullptr, "layers[", layer, "] is NULL: expected a path");
      paths.emplace_back(layers[layer]);
    }
    *transform = new rh_transform{rankhouse::transform::CompiledTransform::Open(folder, paths)};
  });
}

void rh_transform_close(rh_transform* transform) { delete transform; }

int rh_transform_get_shape(const rh_transform* transform, rh_transform_shape* shape) {
  return Guard([&] {
    Require(transform != nullptr && shape != nullptr, "transform or shape is NULL");
    *shape = transform->transform.shape();
  });
}

int rh_transform_check(const rh_transform* transform, const rh_raw_batch* batch) {
  return Guard([&] {
    Require(transform != nullptr && batch != nullptr, "transform or batch is NULL");
    transform->transform.Check(*batch);
  });
}

int rh_transform_apply(const rh_transform* transform, const rh_raw_batch* batches, int64_t num_batches,
                       rh_model_input* input, const rh_executor* executor) {
  return Guard([&] {
    Require(transform != nullptr && input != nullptr, "transform or input is NULL");
    Require(num_batches >= 0 && (batches != nullptr || num_batches == 0), "num_batches is ", num_batches,
            ": expected 0 or more, and as many batches");
    transform->transform.Apply(batches, num_batches, input, executor);
  });
}
