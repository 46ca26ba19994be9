// Memory straight from the system, in huge pages where it grants them: reading rows at random is up to three times as
// fast there, because one entry of the processor's address cache then covers 2 MiB.
#ifndef RANKHOUSE_CPU_MEMORY_H_
#define RANKHOUSE_CPU_MEMORY_H_

#include <cstdint>

namespace rankhouse {

// Maps zeroed memory on a boundary of 2 MiB; nullptr where the system has none. bytes > 0.
void* MapMemory(int64_t bytes) noexcept;

// Gives back what MapMemory(bytes) returned.
void UnmapMemory(void* memory, int64_t bytes) noexcept;

}  // namespace rankhouse

#endif  // RANKHOUSE_CPU_MEMORY_H_
