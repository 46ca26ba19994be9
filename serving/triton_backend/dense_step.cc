#include "dense_step.h"

#include <algorithm>

#include "failure.h"
#include "shared_rows.h"
#include "tensors.h"

namespace rankhouse::triton {
namespace {

constexpr int64_t kMostJoinedRows = 64;

int64_t NumRows(const Request& request) { return request.input(0).shape[0]; }

}  // namespace

DenseStep::DenseStep(const ServedVersion& version, const std::string& onnxruntime)
    : inputs_{kDense, kEmbeddings},
      widths_{version.num_dense(), version.num_columns()},
      part_(onnxruntime, version.dense_path()) {}

void DenseStep::CheckKind(bool is_on_gpu) const {
  Require(!is_on_gpu, "the step dense runs on the CPU: set the kind of the model's instances to KIND_CPU");
}

void DenseStep::Run(const std::vector<Request*>& requests, Workspace* workspace) const {
  int64_t num_rows = 0;
  for (const Request* request : requests) {
    Check(*request);
    num_rows += NumRows(*request);
  }
  float* const scores = workspace->scores.OfSize(num_rows);
  float* next = scores;
  for (auto begin = requests.begin(); begin != requests.end();) {
    int64_t joined = NumRows(**begin);
    auto end = begin + 1;
    for (; end != requests.end() && joined + NumRows(**end) <= kMostJoinedRows; ++end) joined += NumRows(**end);
    Score(&*begin, &*begin + (end - begin), next, workspace);
    next += joined;
    begin = end;
  }
  const float* begin = scores;
  ForEachAlone(requests, [&](Request* request) {
    const float* from = begin;
    begin += NumRows(*request);
    std::copy(from, begin, request->Output<float>(kScores, {NumRows(*request)}));
  });
}

void DenseStep::Score(Request* const* begin, Request* const* end, float* scores, Workspace* workspace) const {
  int64_t num_rows = 0;
  for (auto one = begin; one != end; ++one) num_rows += NumRows(**one);
  if (num_rows == 0) return;
  Buffer<float>* const buffers[2] = {&workspace->dense, &workspace->embeddings};
  std::array<Matrix, 2> matrices;
  for (size_t k = 0; k < 2; ++k) {
    matrices[k] = {inputs_[k].name, (*begin)->input(k).as<float>(), widths_[k]};
    if (end - begin == 1) continue;
    float* joined = buffers[k]->OfSize(num_rows * widths_[k]);
    matrices[k].data = joined;
    for (auto one = begin; one != end; ++one) {
      const Tensor& rows = (*one)->input(k);
      joined = std::copy(rows.as<float>(), rows.as<float>() + rows.size, joined);
    }
  }
  part_.Score(matrices, num_rows, scores);
}

void DenseStep::Check(const Request& request) const {
  for (size_t k = 0; k < 2; ++k) {
    const Tensor& rows = request.input(k);
    Require(rows.shape[0] == NumRows(request) && rows.shape[1] == widths_[k], inputs_[k].name, " has shape ",
            rows.ShapeText(), "; expected (", NumRows(request), ", ", widths_[k], ")");
  }
}

}  // namespace rankhouse::triton
