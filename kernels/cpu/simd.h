// Compiles a function for several instruction sets; the loader picks the best that the processor has.
//
// Contraction of products into sums is off in the whole library (CMakeLists.txt), so all of them give the same bits.
#ifndef RANKHOUSE_CPU_SIMD_H_
#define RANKHOUSE_CPU_SIMD_H_

#include <cstdint>

// The widest vectors that this build uses (CMakeLists.txt).
#if !defined(RH_MAX_VECTOR_BITS)
#define RH_MAX_VECTOR_BITS 512
#endif

// Sanitizers come to life only after the loader has picked.
#if !defined(__x86_64__) || RH_MAX_VECTOR_BITS == 128 || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RH_SIMD
#elif RH_MAX_VECTOR_BITS == 256
#define RH_SIMD __attribute__((target_clones("avx2", "default")))
#else
#define RH_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
// What an RH_SIMD function calls must be inlined into it, or it stays plain.
#define RH_INLINE inline __attribute__((always_inline))

namespace rankhouse {

// How many rows ahead to prefetch: enough to cover a memory access (~100 ns) with the work on other rows.
constexpr int64_t kPrefetchRows = 16;

// Starts loading a row. The address may be wild (an id that was not checked yet): a prefetch never faults.
RH_INLINE void PrefetchRow(const void* rows, int64_t row, int64_t row_bytes) {
  constexpr uintptr_t kLine = 64;
  const uintptr_t size = static_cast<uintptr_t>(row_bytes);
  const uintptr_t address = reinterpret_cast<uintptr_t>(rows) + static_cast<uintptr_t>(row) * size;
  // The processor's own prefetcher follows long rows by itself.
  const uintptr_t end = address + (size < 4 * kLine ? size : 4 * kLine);
  for (uintptr_t line = address; line < end; line += kLine) __builtin_prefetch(reinterpret_cast<const void*>(line));
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_SIMD_H_
