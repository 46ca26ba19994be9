// LMDB behind the functions of key_value.h. Keys are integers, as LMDB compares them fastest; rows are copied from its
// map.
#include <lmdb.h>
#include <stdlib.h>
#include <string.h>

#include "key_value.h"

typedef struct {
  MDB_env* env;
  MDB_dbi dbi;
  MDB_txn* txn;
} store;

static int open_env(MDB_env** env, const char* path, size_t map_bytes, unsigned flags) {
  int status = mdb_env_create(env);
  if (status == 0) status = mdb_env_set_mapsize(*env, map_bytes);
  if (status == 0) status = mdb_env_open(*env, path, flags | MDB_NORDAHEAD, 0644);
  return status;
}

int kv_build(const char* path, const float* rows, int64_t num_rows, int64_t dim) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  // Small rows share pages with their headers, and the last of a page does not fill it.
  const size_t map_bytes = (size_t)num_rows * ((size_t)dim * 4 + 64) * 2 + (64u << 20);
  int status = open_env(&env, path, map_bytes, MDB_NOSYNC);
  if (status == 0) status = mdb_txn_begin(env, NULL, 0, &txn);
  if (status == 0) status = mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &dbi);
  for (size_t row = 0; status == 0 && row < (size_t)num_rows; ++row) {
    MDB_val key = {sizeof row, &row}, value = {(size_t)dim * 4, (void*)(rows + row * (size_t)dim)};
    status = mdb_put(txn, dbi, &key, &value, MDB_APPEND);
    if (status == 0 && row % 1000000 == 999999) {  // A transaction keeps what it changed in memory.
      status = mdb_txn_commit(txn);
      if (status == 0) status = mdb_txn_begin(env, NULL, 0, &txn);
    }
  }
  if (status == 0) status = mdb_txn_commit(txn);
  if (status == 0) status = mdb_env_sync(env, 1);
  mdb_env_close(env);
  return status;
}

void* kv_open(const char* path) {
  store* opened = calloc(1, sizeof *opened);
  // A size of 0 takes the file's own.
  int status = open_env(&opened->env, path, 0, MDB_RDONLY | MDB_NOLOCK);
  if (status == 0) status = mdb_txn_begin(opened->env, NULL, MDB_RDONLY, &opened->txn);
  if (status == 0) status = mdb_dbi_open(opened->txn, NULL, MDB_INTEGERKEY, &opened->dbi);
  if (status == 0) return opened;
  free(opened);
  return NULL;
}

int kv_lookup(void* handle, const int64_t* keys, int64_t num_keys, int64_t row_bytes, char* out) {
  store* opened = handle;
  // A reader's transaction sees the state at its begin: a request that must see the newest renews it.
  mdb_txn_reset(opened->txn);
  int status = mdb_txn_renew(opened->txn);
  for (int64_t n = 0; status == 0 && n < num_keys; ++n) {
    MDB_val key = {sizeof keys[n], (void*)(keys + n)}, value;
    status = mdb_get(opened->txn, opened->dbi, &key, &value);
    if (status == 0) memcpy(out + n * row_bytes, value.mv_data, (size_t)row_bytes);
  }
  return status;
}

void kv_close(void* handle) {
  store* opened = handle;
  mdb_txn_abort(opened->txn);
  mdb_env_close(opened->env);
  free(opened);
}
