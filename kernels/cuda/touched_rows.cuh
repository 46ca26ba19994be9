// The rows that updates work on, table by table, and what is done with them, for rh_apply_cuda, rh_catch_up_cuda and
// the fused update alike.
#ifndef RANKHOUSE_CUDA_TOUCHED_ROWS_CUH_
#define RANKHOUSE_CUDA_TOUCHED_ROWS_CUH_

#include "cuda/device_lookup.cuh"
#include "cuda/update_rows.cuh"

namespace rankhouse {

// How launches share the rows among blocks.
enum BlockShare {
  kThreadPerTouched = 0,  // a thread owns a touched row
  kGroupPerTouched = 1,   // a group of threads does
  kGroupPerRow = 2,       // a group of threads owns a row of the table
  kNumBlockShares = 3
};

// Rows of a table that is trained: those of a sparse gradient, or all.
struct TouchedRows {
  DeviceTrained trained;
  const int64_t* ids;             // increasing; or NULL: all rows
  const int32_t* first;           // on the device: where they begin in ids; or NULL: at 0
  const int64_t* device_num_ids;  // on the device: how many there are; or NULL: num_ids
  int64_t num_ids;                // at most
  const float* gradient;          // [num_ids, D]; or NULL where kernels make it
  int64_t most_last_step;         // RH_EXACT: the last steps of rows that are no fault are 0 to this
  int64_t first_blocks[kNumBlockShares];
  int32_t lanes;
  int32_t columns;

  __device__ int64_t Count() const {
    return device_num_ids != nullptr && *device_num_ids < num_ids ? *device_num_ids : num_ids;
  }
  __device__ int64_t Row(int64_t k) const { return ids == nullptr ? k : ids[k + (first == nullptr ? 0 : *first)]; }
};

// A position in the gradient of a table as a Fault: tables first, then positions.
constexpr int kPositionBits = 40;

// Where a bad last step is reported. `rows` NULL: *first is the table and the position; else it is the table, and the
// row goes to rows[table].
struct LastStepReport {
  Fault* first;
  BadLastStep* rows;
};

// Faults that keep kernels from changing anything.
struct Stops {
  const Fault* faults;
  int32_t count;

  __device__ bool Any() const {
    bool any = false;
    for (int32_t i = 0; i < count; ++i) any = any || faults[i] != kNoFault;
    return any;
  }
};

// The touched rows of all tables of a call.
class TouchedTables {
 public:
  // Shares the rows among blocks and uploads them into `device` [T].
  TouchedTables(std::vector<TouchedRows> host, TouchedRows* device, cudaStream_t stream);

  // Checks that ids increase and are rows; *fault is the first that is not.
  void CheckIds(Fault* fault, cudaStream_t stream) const;

  // RH_EXACT: checks the last steps of the touched rows.
  void CheckLastSteps(LastStepReport report, Stops stops, cudaStream_t stream) const;

  // RH_EXACT: makes the steps that the touched rows have missed, up to and with constants.step - steps_back.
  void CatchUp(int64_t steps_back, Stops stops, cudaStream_t stream) const;

  // Makes the step of the touched rows, from `gradient`.
  void Step(Stops stops, cudaStream_t stream) const;

  // RH_DENSE: makes the step of all rows that are not touched.
  void MoveUntouched(Stops stops, cudaStream_t stream) const;

 private:
  bool Has(rh_update_kind kind) const;

  std::vector<TouchedRows> host_;
  TouchedRows* device_;
  int64_t num_blocks_[kNumBlockShares];
};

}  // namespace rankhouse

#endif  // RANKHOUSE_CUDA_TOUCHED_ROWS_CUH_
