// Which of a cluster's 16384 slots a key lies in.
#ifndef RANKHOUSE_REDIS_SLOTS_H_
#define RANKHOUSE_REDIS_SLOTS_H_

#include <cstdint>
#include <string_view>

namespace rankhouse::redis {

constexpr int kNumSlots = 16384;

// CRC16 (XMODEM) of the key, or of what stands between its first '{' and the next '}' if that is not empty: Redis
// Cluster Specification, "Hash tags".
uint16_t SlotOf(std::string_view key);

// CRC16 (XMODEM) of bytes, from that of the bytes before them.
uint16_t Crc16(std::string_view bytes, uint16_t before = 0);

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_SLOTS_H_
