// What the benchmark asks of a key-value store: rows of dim floats by their number. All return 0, or the store's error.
#ifndef RANKHOUSE_BENCHMARKS_KEY_VALUE_H_
#define RANKHOUSE_BENCHMARKS_KEY_VALUE_H_

#include <stdint.h>

// Fills a new store at a path with rows [num_rows, dim]; row k has the key k.
int kv_build(const char* path, const float* rows, int64_t num_rows, int64_t dim);
// Opens it to read; NULL on failure.
void* kv_open(const char* path);
// Copies the rows of keys [num_keys] to out [num_keys, row_bytes].
int kv_lookup(void* store, const int64_t* keys, int64_t num_keys, int64_t row_bytes, char* out);
void kv_close(void* store);

#endif  // RANKHOUSE_BENCHMARKS_KEY_VALUE_H_
