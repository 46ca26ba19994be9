// Opens damaged files, and gives raw batches of random lengths to those that open all the same: whatever stands in
// them, calls end, by success or by a status, and no memory but theirs is read.
//
//   fuzz SEED ROUNDS TRANSFORM_JSON LAYER...
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "memory_files.h"
#include "rankhouse/transform.h"

namespace {

using Random = std::mt19937_64;

int64_t Below(Random& random, int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); }

std::string ReadAll(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) std::fprintf(stderr, "%s: cannot be read\n", path), std::exit(2);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int64_t AnyNumber(Random& random, int64_t near) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const auto bits = static_cast<uint64_t>(near);
  const int64_t next = static_cast<int64_t>(bits + 1), last = static_cast<int64_t>(bits - 1);
  const int64_t numbers[] = {0, 1, -1, -2, next, last, near / 2, kMost, -kMost - 1, kMost / 8 + 1, int64_t{1} << 32};
  return numbers[Below(random, std::size(numbers))];
}

// Some bytes, as they come.
void ChangeBytes(Random& random, std::string& file) {
  for (int64_t n = Below(random, 4); n >= 0; --n) file[Below(random, file.size())] = static_cast<char>(random());
}

// The file ends early, or has something behind its end.
void ChangeSize(Random& random, std::string& file) { file.resize(Below(random, file.size() + 16)); }

// A number of 8 bytes, behind the header if there is one: slots, offsets, ids.
void ChangeNumber(Random& random, std::string& file) {
  if (file.size() < 16) return;
  const int64_t place = Below(random, file.size() / 8 - 1) * 8;
  int64_t number;
  std::memcpy(&number, &file[place], 8);
  number = Below(random, 2) != 0 ? AnyNumber(random, number) : number ^ int64_t{1} << Below(random, 64);
  std::memcpy(&file[place], &number, 8);
}

// A number or a name of the JSON text becomes another one of it.
void ChangeWord(Random& random, std::string& file) {
  std::vector<std::pair<size_t, size_t>> words;
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; };
  for (size_t begin = 0; begin < file.size() && file[begin] != '\0';) {
    size_t end = begin;
    while (end < file.size() && is_word(file[end])) ++end;
    if (end > begin) words.emplace_back(begin, end - begin);
    begin = end + 1;
  }
  if (words.empty()) return;
  const auto [from, from_size] = words[Below(random, words.size())];
  const auto [to, to_size] = words[Below(random, words.size())];
  const std::string word = file.substr(from, from_size);
  // Sometimes as long as before, so that what follows stays in its place.
  const bool fits = from_size <= to_size && Below(random, 2) != 0;
  file.replace(to, to_size, fits ? word + std::string(to_size - from_size, ' ') : word);
}

void Damage(Random& random, std::string& file) {
  if (file.empty()) return;
  switch (Below(random, 8)) {
    case 0:
      return ChangeBytes(random, file);
    case 1:
      return ChangeSize(random, file);
    case 2:
    case 3:
      return ChangeWord(random, file);
    default:
      return ChangeNumber(random, file);
  }
}

// A batch of three rows and of any lengths; arrays of exactly their size.
struct Batch {
  std::vector<double> floats;
  std::vector<int64_t> ints;
  std::vector<int32_t> int_lengths, text_sizes, text_lengths;
  std::vector<uint8_t> bytes;
  rh_raw_batch raw = {};

  Batch(Random& random, const rh_transform_shape& shape) : raw{} {
    constexpr int64_t kRows = 3;
    const char* const texts[] = {"rome", "oslo", "paris", "a", "bb", "ccc", "lima", "zz"};
    const int64_t values[] = {9, 4, 11, 7, -3, int64_t{1} << 40, 0, std::numeric_limits<int64_t>::min()};
    floats.assign(kRows * shape.num_floats, 0.5);
    for (int64_t bag = 0; bag < kRows * shape.num_ints; ++bag) {
      int_lengths.push_back(static_cast<int32_t>(Below(random, 2)));
      for (int32_t n = 0; n < int_lengths.back(); ++n) ints.push_back(values[Below(random, std::size(values))]);
    }
    for (int64_t bag = 0; bag < kRows * shape.num_texts; ++bag) {
      text_lengths.push_back(static_cast<int32_t>(Below(random, 2)));
      for (int32_t n = 0; n < text_lengths.back(); ++n) {
        const std::string text = texts[Below(random, std::size(texts))];
        text_sizes.push_back(static_cast<int32_t>(text.size()));
        bytes.insert(bytes.end(), text.begin(), text.end());
      }
    }
    if (Below(random, 4) == 0) Break(random);
    raw.num_rows = kRows;
    raw.num_float_columns = shape.num_floats;
    raw.num_int_columns = shape.num_ints;
    raw.num_text_columns = shape.num_texts;
    Point();
  }

  void Break(Random& random) {
    for (auto* lengths : {&int_lengths, &text_sizes, &text_lengths}) {
      if (lengths->empty()) continue;
      (*lengths)[Below(random, lengths->size())] = static_cast<int32_t>(AnyNumber(random, Below(random, 3)));
    }
  }

  void Point() {
    for (auto* lengths : {&int_lengths, &text_sizes, &text_lengths}) lengths->shrink_to_fit();
    ints.shrink_to_fit();
    bytes.shrink_to_fit();
    raw.float_values = floats.data();
    raw.int_values = ints.data();
    raw.int_lengths = int_lengths.data();
    raw.text_bytes = bytes.data();
    raw.text_sizes = text_sizes.data();
    raw.text_lengths = text_lengths.data();
    raw.num_ints = static_cast<int64_t>(ints.size());
    raw.num_texts = static_cast<int64_t>(text_sizes.size());
    raw.num_text_bytes = static_cast<int64_t>(bytes.size());
  }
};

bool Apply(Random& random, const rh_transform* transform) {
  rh_transform_shape shape;
  if (rh_transform_get_shape(transform, &shape) != RH_OK) return false;
  const Batch batch(random, shape);
  std::vector<float> dense(batch.raw.num_rows * shape.num_floats);
  std::vector<int64_t> ids(batch.raw.num_rows * shape.num_features + batch.raw.num_ints + batch.raw.num_texts);
  std::vector<int64_t> offsets(batch.raw.num_rows * shape.num_features + 1);
  int64_t num_unknown = -1;
  rh_model_input input = {dense.data(), ids.data(), static_cast<int64_t>(ids.size()), offsets.data(), nullptr,
                          &num_unknown, 0};
  const int status = rh_transform_apply(transform, &batch.raw, 1, &input, nullptr);
  if (status == RH_OK && offsets.back() != input.num_ids) std::abort();
  if (status == RH_OK && num_unknown > batch.raw.num_ints + batch.raw.num_texts) std::abort();
  return status == RH_OK;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  Random random(std::strtoull(argv[1], nullptr, 10));
  const int64_t rounds = std::strtoll(argv[2], nullptr, 10);
  std::map<std::string, std::string> intact = {{"/transform.json", ReadAll(argv[3])}};
  std::vector<const char*> layers(argv + 4, argv + argc);
  for (const char* layer : layers) intact[layer] = ReadAll(layer);
  int64_t num_opened = 0, num_applied = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    MemoryFiles() = intact;
    if (round != 0) {
      auto file = MemoryFiles().begin();
      std::advance(file, Below(random, MemoryFiles().size()));
      for (int64_t n = Below(random, 3); n >= 0; --n) Damage(random, file->second);
    }
    rh_transform* transform = nullptr;
    const int status = rh_transform_open("", layers.data(), static_cast<int64_t>(layers.size()), &transform);
    if (status != RH_OK && status != RH_CORRUPT)
      std::fprintf(stderr, "%d: %s\n", status, rh_last_error()), std::exit(1);
    if (status != RH_OK) continue;
    ++num_opened;
    for (int n = 0; n < 8; ++n) num_applied += Apply(random, transform);
    rh_transform_close(transform);
  }
  std::printf("%lld opened, %lld applied\n", static_cast<long long>(num_opened), static_cast<long long>(num_applied));
  return num_opened > 0 && num_applied > 0 ? 0 : 1;
}
