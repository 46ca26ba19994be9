// Damaged replies, cut anywhere, given to the reader of replies; all that it gives is looked at. Arguments: a seed, and
// how many. Prints how many replies were found, and how many times something was no reply.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>

#include "redis/resp.h"

namespace {

using rankhouse::redis::Reply;
using rankhouse::redis::ReplyReader;
using Random = std::mt19937_64;

const std::string kReplies[] = {
    "+OK\r\n",
    "-MOVED 3999 127.0.0.1:6381\r\n",
    ":1000\r\n",
    "$-1\r\n",
    "*-1\r\n",
    "*0\r\n",
    "$5\r\nhello\r\n",
    "*2\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$9\r\n127.0.0.1\r\n:6379\r\n*3\r\n:8192\r\n:16383\r\n*2\r\n$0\r\n\r\n:6380\r\n",
    "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    ",1.5\r\n#t\r\n%1\r\n:1\r\n:2\r\n~1\r\n:1\r\n>1\r\n:1\r\n_\r\n(12\r\n=5\r\ntxt:a\r\n",
    "$200\r\n" + std::string(200, 'x') + "\r\n",
};
const std::string kNumbers[] = {"-2", "0", "1", "65536", "2147483647", "4294967296", "9223372036854775807", "1e3", ""};

int64_t Below(Random* random, int64_t bound) { return static_cast<int64_t>((*random)() % bound); }

std::string Damaged(Random* random) {
  std::string bytes;
  for (int64_t n = 1 + Below(random, 3); n > 0; --n) bytes += kReplies[Below(random, std::size(kReplies))];
  for (int64_t n = Below(random, 4); n > 0 && !bytes.empty(); --n) {
    const int64_t at = Below(random, static_cast<int64_t>(bytes.size()));
    switch (Below(random, 4)) {
      case 0:
        bytes[at] = static_cast<char>((*random)());
        break;
      case 1:
        bytes.erase(at, 1 + Below(random, 4));
        break;
      case 2:
        bytes.insert(at, kReplies[Below(random, std::size(kReplies))]);
        break;
      default: {
        const size_t digit = bytes.find_first_of("0123456789", at);
        if (digit != std::string::npos) bytes.replace(digit, 1, kNumbers[Below(random, std::size(kNumbers))]);
      }
    }
  }
  return bytes;
}

size_t SizeOf(const Reply& reply) {
  size_t size = reply.text.size() + static_cast<size_t>(reply.integer & 1);
  for (const char c : reply.text) size += c == 'x';
  for (const Reply& element : reply.elements) size += SizeOf(element);
  return size;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Random random(std::strtoull(argv[1], nullptr, 10));
  int64_t num_found = 0, num_refused = 0;
  size_t all = 0;
  for (int64_t left = std::atoll(argv[2]); left > 0; --left) {
    const std::string bytes = Damaged(&random);
    ReplyReader reader;
    try {
      for (size_t begin = 0; begin < bytes.size();) {
        const size_t size = std::min<size_t>(bytes.size() - begin, 1 + Below(&random, 20));
        const std::string part = bytes.substr(begin, size);
        reader.Feed(part.data(), part.size());
        begin += size;
        while (const Reply* reply = reader.Next()) {
          ++num_found;
          all += SizeOf(*reply);
        }
      }
    } catch (const std::runtime_error&) {
      ++num_refused;
    }
  }
  std::printf("%ld %ld %zu\n", num_found, num_refused, all);
  return 0;
}
