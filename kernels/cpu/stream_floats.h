// Writes past the caches what they could not keep: the lines need not be read first.
#ifndef RANKHOUSE_CPU_STREAM_FLOATS_H_
#define RANKHOUSE_CPU_STREAM_FLOATS_H_

#include <algorithm>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace rankhouse {

// to [num_floats] = from [num_floats]. Other threads see it after EndStream.
inline void StreamFloats(const float* from, int64_t num_floats, float* to) {
  int64_t d = 0;
#if defined(__x86_64__)
  constexpr uintptr_t kAligned = 16;
  for (; d < num_floats && reinterpret_cast<uintptr_t>(to + d) % kAligned != 0; ++d) to[d] = from[d];
  for (; d + 4 <= num_floats; d += 4) _mm_stream_ps(to + d, _mm_loadu_ps(from + d));
#endif
  std::copy(from + d, from + num_floats, to + d);
}

inline void EndStream() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_STREAM_FLOATS_H_
