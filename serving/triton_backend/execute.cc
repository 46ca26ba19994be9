#include <chrono>
#include <vector>

#include "failure.h"
#include "model.h"

namespace rankhouse::triton {
namespace {

uint64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool IsUnavailable(const std::exception& error) {
  const auto* failure = dynamic_cast<const Failure*>(&error);
  return failure != nullptr && failure->code() == TRITONSERVER_ERROR_UNAVAILABLE;
}

// Runs a request of a batch that failed.
void RunAlone(const Step& step, Request* request, Workspace* workspace, const std::exception& of_batch) {
  try {
    step.Run({request}, workspace);
  } catch (const std::exception& error) {
    // Why rows did not come the batch knows, which waited for them.
    const bool is_same = IsUnavailable(error) && IsUnavailable(of_batch);
    request->SetError(AsError(is_same ? of_batch : error));
  }
}

void Run(const Step& step, const std::vector<Request*>& requests, Workspace* workspace) {
  try {
    step.Run(requests, workspace);
  } catch (const std::exception& error) {
    if (requests.size() == 1) return requests[0]->SetError(AsError(error));
    // One of them is wrong, or rows did not come, or the batch as a whole is too large: alone, each gets its answer or
    // its own error. Nothing waits for rows again.
    for (Request* request : requests) RunAlone(step, request, workspace, error);
  }
}

}  // namespace

void Execute(const Model& model, Workspace* workspace, TRITONBACKEND_ModelInstance* instance,
             TRITONBACKEND_Request** requests, uint32_t num_requests) {
  uint64_t times[4] = {Now(), 0, 0, 0};
  std::vector<Request> all;
  all.reserve(num_requests);
  std::vector<Request*> readable;
  for (uint32_t k = 0; k < num_requests; ++k) {
    Request& request = all.emplace_back(requests[k], model.is_batched());
    request.Read(model.step().inputs());
    if (!request.has_failed()) readable.push_back(&request);
  }
  times[1] = Now();
  workspace->started_ns = static_cast<int64_t>(times[1]);
  if (!readable.empty()) Run(model.step(), readable, workspace);
  times[2] = Now();
  for (Request& request : all) request.Send();
  times[3] = Now();
  for (Request& request : all) request.Finish(instance, times);
  Log(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, num_requests, times[0], times[1], times[2], times[3]));
}

}  // namespace rankhouse::triton
