#include "redis/slots.h"

#include <array>

namespace rankhouse::redis {
namespace {

constexpr std::array<uint16_t, 256> MakeTable() {
  std::array<uint16_t, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) ? 0x1021 : 0);
    table[byte] = static_cast<uint16_t>(crc);
  }
  return table;
}

constexpr std::array<uint16_t, 256> kTable = MakeTable();

std::string_view Hashed(std::string_view key) {
  const size_t open = key.find('{');
  if (open == std::string_view::npos) return key;
  const size_t close = key.find('}', open + 1);
  if (close == std::string_view::npos || close == open + 1) return key;
  return key.substr(open + 1, close - open - 1);
}

}  // namespace

uint16_t SlotOf(std::string_view key) { return Crc16(Hashed(key)) % kNumSlots; }

uint16_t Crc16(std::string_view bytes, uint16_t before) {
  uint16_t crc = before;
  for (const char c : bytes) {
    crc = static_cast<uint16_t>((crc << 8) ^ kTable[(crc >> 8) ^ static_cast<unsigned char>(c)]);
  }
  return crc;
}

}  // namespace rankhouse::redis
