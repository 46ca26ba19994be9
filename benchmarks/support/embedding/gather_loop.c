// The machine's limit for pooled lookup: a plain loop that adds up rows, with software prefetch. No id is checked, rows
// begin on 64 bytes and have a multiple of 16 floats, all bags hold `hotness` ids, and threads are OpenMP's.
#include <stdint.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef float lanes __attribute__((vector_size(64)));

typedef struct {
  const float* const* tables;  // [F] each [R, D]
  const int64_t* ids;          // [F, B, H]
  float* out;                  // [B, F * D]
  int64_t num_features, batch_size, hotness, dim;
  int64_t distance;   // how many ids ahead rows are prefetched; 0: not at all
  int64_t streaming;  // 1: outputs are written around the caches
} gather_task;

static inline __attribute__((always_inline)) void write_lanes(float* to, lanes value, int64_t streaming) {
#if defined(__AVX512F__)
  if (streaming) {
    _mm512_stream_ps(to, (__m512)value);
    return;
  }
#endif
  *(lanes*)to = value;
}

static inline __attribute__((always_inline)) void gather(const gather_task* task, int64_t feature, int64_t begin,
                                                         int64_t end, int64_t dim) {
  const float* table = task->tables[feature];
  const int64_t* ids = task->ids + feature * task->batch_size * task->hotness;
  const int64_t last = end * task->hotness - 1, distance = task->distance;
  for (int64_t sample = begin; sample < end; ++sample) {
    lanes sum[8] = {};
    for (int64_t n = sample * task->hotness; n < (sample + 1) * task->hotness; ++n) {
      if (distance > 0) {
        const float* ahead = table + ids[n + distance < last ? n + distance : last] * dim;
        for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(ahead + d);
      }
      const lanes* row = (const lanes*)(table + ids[n] * dim);
      for (int64_t d = 0; d < dim / 16; ++d) sum[d] += row[d];
    }
    float* out = task->out + (sample * task->num_features + feature) * dim;
    for (int64_t d = 0; d < dim / 16; ++d) write_lanes(out + d * 16, sum[d], task->streaming);
  }
}

// dim is 16 or 128.
void gather_loop(const gather_task* task, int num_threads) {
  // Blocks of samples, all features each, long enough that prefetching seldom starts anew.
  const int64_t share = (task->batch_size + num_threads - 1) / num_threads;
  const int64_t wanted = 4096 / task->hotness > 256 ? 4096 / task->hotness : 256;
  const int64_t block = wanted < share ? wanted : share;
  const int64_t num_blocks = (task->batch_size + block - 1) / block;
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t begin = i * block, end = begin + block < task->batch_size ? begin + block : task->batch_size;
    for (int64_t feature = 0; feature < task->num_features; ++feature) {
      if (task->dim == 16) {
        gather(task, feature, begin, end, 16);
      } else {
        gather(task, feature, begin, end, 128);
      }
    }
#if defined(__AVX512F__)
    if (task->streaming) _mm_sfence();
#endif
  }
}
