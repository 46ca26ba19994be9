// RocksDB behind the functions of key_value.h, as its documentation advises for point lookups: one sorted file for each
// ten million rows, no compression, a Bloom filter, a hash index in data blocks, and blocks in a cache that holds them
// all where memory allows. Keys are big-endian, so that they sort.
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "key_value.h"

#define BLOCK_CACHE_BYTES (4ull << 30)
#define ROWS_OF_FILE 10000000
#define BLOOM_BITS 10
#define KEY_BYTES 8

typedef struct {
  rocksdb_options_t* options;
  rocksdb_readoptions_t* reading;
  rocksdb_t* db;
  rocksdb_column_family_handle_t* family;
  int64_t capacity;
  char* keys;
  const char** key_pointers;
  size_t* key_sizes;
  rocksdb_pinnableslice_t** values;
  char** errors;
} store;

static int failed(char* error) {
  if (error != NULL) fprintf(stderr, "rocksdb: %s\n", error);
  free(error);
  return error != NULL;
}

static void put_key(char* key, uint64_t number) {
  for (int byte = KEY_BYTES - 1; byte >= 0; --byte, number >>= 8) key[byte] = (char)number;
}

static rocksdb_options_t* make_options(void) {
  rocksdb_options_t* options = rocksdb_options_create();
  rocksdb_block_based_table_options_t* table = rocksdb_block_based_options_create();
  rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS));
  rocksdb_block_based_options_set_block_cache(table, rocksdb_cache_create_lru(BLOCK_CACHE_BYTES));
  rocksdb_block_based_options_set_data_block_index_type(
      table, rocksdb_block_based_table_data_block_index_type_binary_search_and_hash);
  rocksdb_options_set_block_based_table_factory(options, table);
  rocksdb_options_set_compression(options, rocksdb_no_compression);
  rocksdb_options_set_create_if_missing(options, 1);
  rocksdb_options_set_max_open_files(options, -1);
  rocksdb_options_set_advise_random_on_open(options, 1);
  return options;
}

static int write_file(rocksdb_options_t* options, const char* file, const float* rows, int64_t begin, int64_t end,
                      int64_t dim) {
  char *error = NULL, key[KEY_BYTES];
  rocksdb_envoptions_t* environment = rocksdb_envoptions_create();
  rocksdb_sstfilewriter_t* writer = rocksdb_sstfilewriter_create(environment, options);
  rocksdb_sstfilewriter_open(writer, file, &error);
  for (int64_t row = begin; error == NULL && row < end; ++row) {
    put_key(key, (uint64_t)row);
    rocksdb_sstfilewriter_put(writer, key, KEY_BYTES, (const char*)(rows + row * dim), (size_t)dim * 4, &error);
  }
  if (error == NULL) rocksdb_sstfilewriter_finish(writer, &error);
  rocksdb_sstfilewriter_destroy(writer);
  rocksdb_envoptions_destroy(environment);
  return failed(error);
}

int kv_build(const char* path, const float* rows, int64_t num_rows, int64_t dim) {
  char *error = NULL, file[4096];
  rocksdb_options_t* options = make_options();
  rocksdb_t* db = rocksdb_open(options, path, &error);
  if (failed(error)) return 1;
  rocksdb_ingestexternalfileoptions_t* ingestion = rocksdb_ingestexternalfileoptions_create();
  rocksdb_ingestexternalfileoptions_set_move_files(ingestion, 1);
  int status = 0;
  for (int64_t begin = 0; status == 0 && begin < num_rows; begin += ROWS_OF_FILE) {
    const int64_t end = begin + ROWS_OF_FILE < num_rows ? begin + ROWS_OF_FILE : num_rows;
    snprintf(file, sizeof file, "%s.sst", path);
    status = write_file(options, file, rows, begin, end, dim);
    const char* files[] = {file};
    if (status == 0) rocksdb_ingest_external_file(db, files, 1, ingestion, &error);
    status = status || failed(error);
  }
  rocksdb_ingestexternalfileoptions_destroy(ingestion);
  rocksdb_close(db);
  rocksdb_options_destroy(options);
  return status;
}

void* kv_open(const char* path) {
  char* error = NULL;
  store* opened = calloc(1, sizeof *opened);
  opened->options = make_options();
  opened->reading = rocksdb_readoptions_create();
  rocksdb_readoptions_set_verify_checksums(opened->reading, 0);
  const char* const family = "default";
  const rocksdb_options_t* const options = opened->options;
  opened->db = rocksdb_open_for_read_only_column_families(opened->options, path, 1, &family, &options, &opened->family,
                                                          0, &error);
  if (!failed(error)) return opened;
  free(opened);
  return NULL;
}

static void reserve(store* opened, int64_t num_keys) {
  if (num_keys <= opened->capacity) return;
  const size_t count = (size_t)num_keys;
  opened->keys = realloc(opened->keys, count * KEY_BYTES);
  opened->key_pointers = realloc(opened->key_pointers, count * sizeof *opened->key_pointers);
  opened->key_sizes = realloc(opened->key_sizes, count * sizeof *opened->key_sizes);
  opened->values = realloc(opened->values, count * sizeof *opened->values);
  opened->errors = realloc(opened->errors, count * sizeof *opened->errors);
  for (size_t n = 0; n < count; ++n) {
    opened->key_pointers[n] = opened->keys + n * KEY_BYTES;
    opened->key_sizes[n] = KEY_BYTES;
  }
  opened->capacity = num_keys;
}

int kv_lookup(void* handle, const int64_t* keys, int64_t num_keys, int64_t row_bytes, char* out) {
  store* opened = handle;
  reserve(opened, num_keys);
  for (int64_t n = 0; n < num_keys; ++n) put_key(opened->keys + n * KEY_BYTES, (uint64_t)keys[n]);
  rocksdb_batched_multi_get_cf(opened->db, opened->reading, opened->family, (size_t)num_keys, opened->key_pointers,
                               opened->key_sizes, opened->values, opened->errors, 0);
  int status = 0;
  for (int64_t n = 0; n < num_keys; ++n) {
    size_t size = 0;
    const char* value = opened->values[n] == NULL ? NULL : rocksdb_pinnableslice_value(opened->values[n], &size);
    if (failed(opened->errors[n]) || size != (size_t)row_bytes) {
      status = 1;
    } else {
      memcpy(out + n * row_bytes, value, size);
    }
    if (opened->values[n] != NULL) rocksdb_pinnableslice_destroy(opened->values[n]);
  }
  return status;
}

void kv_close(void* handle) {
  store* opened = handle;
  rocksdb_column_family_handle_destroy(opened->family);
  rocksdb_close(opened->db);
  rocksdb_readoptions_destroy(opened->reading);
  rocksdb_options_destroy(opened->options);
  free(opened->keys);
  free(opened->key_pointers);
  free(opened->key_sizes);
  free(opened->values);
  free(opened->errors);
  free(opened);
}
