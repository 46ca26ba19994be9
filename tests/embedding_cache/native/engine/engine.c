/* The engine from C, on the stores that were committed. Argument: their folder. */
#include "rankhouse/engine.h"

#include <stdlib.h>
#include <string.h>

#include "tests/kernels/expect.h"

#define CHAIN_LAST "000003-b7a8a7ab"

static char golden_chain[4096];

static int refuses_what_it_does_not_take(void) {
  rh_engine* engine = NULL;
  rh_engine_version* version = NULL;
  EXPECT(rh_engine_abi_version() == RH_ENGINE_ABI_VERSION);
  EXPECT_INVALID(rh_engine_create(NULL, NULL), "engine is NULL");
  EXPECT_INVALID(rh_engine_create("{\"memory\": \"pni\"}", &engine), "'memory' is 'pni': expected one of");
  EXPECT_INVALID(rh_engine_create("{", &engine), "is not valid JSON");
  EXPECT(rh_engine_create("{\"num_threads\": 2}", &engine) == RH_OK);
  EXPECT_INVALID(rh_engine_open(engine, NULL, NULL, 0, &version), "store or version is NULL");
  EXPECT_FAILS(rh_engine_open(engine, "/no/such/store", NULL, 0, &version), RH_NOT_FOUND, "has no version");
  EXPECT_FAILS(rh_engine_open(engine, golden_chain, "000009-00000000", 0, &version), RH_NOT_FOUND, "000009-00000000");
  EXPECT_INVALID(rh_engine_lookup(NULL, NULL, NULL, NULL, NULL), "version or batch is NULL");
  EXPECT_INVALID(rh_engine_lookup_cuda(NULL, NULL, NULL, NULL, NULL, NULL), "version or batch is NULL");
  EXPECT_INVALID(rh_engine_gather(NULL, 0, NULL, 0, NULL, NULL, NULL), "version is NULL");
  EXPECT_INVALID(rh_engine_version_json(NULL, NULL), "version or json is NULL");
  EXPECT_INVALID(rh_engine_metrics(engine, NULL, 10, NULL), "text is NULL");
  rh_engine_destroy(engine);
  rh_engine_destroy(NULL);
  rh_engine_close(NULL);
  return 0;
}

/* Tables city [8, 4], tag [6, 2], shop [6, 3], item [6, 5]: a feature each, in this order. */
static int looks_up_and_gathers(const char* options) {
  rh_engine* engine = NULL;
  rh_engine_version* version = NULL;
  const char* json = NULL;
  EXPECT(rh_engine_create(options, &engine) == RH_OK);
  EXPECT(rh_engine_open(engine, golden_chain, "latest", 1, &version) == RH_OK);
  rh_engine_destroy(engine); /* open versions stay usable */
  EXPECT(rh_engine_version_json(version, &json) == RH_OK);
  EXPECT(strstr(json, "\"name\":\"" CHAIN_LAST "\"") != NULL && strstr(json, "\"embeddings_dim\":14") != NULL);

  const int64_t ids[] = {3, 2, 5, 3, 3};
  const int64_t offsets[] = {0, 1, 2, 2, 3, 3, 3, 4, 5};
  float out[2][14], row[3][4], twice[2][14];
  rh_feature_rows columns[4] = {{&out[0][0], 14}, {&out[0][4], 14}, {&out[0][6], 14}, {&out[0][9], 14}};
  rh_engine_batch batch = {0};
  batch.ids = ids;
  batch.offsets = offsets;
  batch.num_ids = 5;
  batch.batch_size = 2;
  rh_engine_answer answer = {-1, -1};
  EXPECT(rh_engine_lookup(version, &batch, columns, &answer, NULL) == RH_OK);
  EXPECT(answer.num_unknown == 0 && answer.degraded == 0);
  const int64_t cities[] = {3, 2, 4};
  EXPECT(rh_engine_gather(version, 0, cities, 3, row[0], NULL, NULL) == RH_OK);
  EXPECT(memcmp(out[0], row[0], sizeof(row[0])) == 0 && memcmp(out[1], row[1], sizeof(row[1])) == 0);
  EXPECT(out[0][4] == 0 && out[0][5] == 0); /* an empty bag */

  /* The same as lengths, of int32 ids. */
  const int32_t short_ids[] = {3, 2, 5, 3, 3};
  const int32_t lengths[] = {1, 1, 0, 1, 0, 0, 1, 1};
  memcpy(twice, out, sizeof(out));
  batch.ids = short_ids;
  batch.id_type = RH_INT32;
  batch.offsets = NULL;
  batch.lengths = lengths;
  EXPECT(rh_engine_lookup(version, &batch, columns, NULL, NULL) == RH_OK && memcmp(out, twice, sizeof(out)) == 0);
  EXPECT_INVALID(rh_engine_lookup(version, &batch, NULL, NULL, NULL), "out is NULL");

  /* Into one matrix. */
  const int64_t width = columns[0].stride;
  memset(out, 0, sizeof(out));
  EXPECT(rh_engine_lookup_matrix(version, &batch, columns[0].data, width, NULL, NULL) == RH_OK);
  EXPECT(memcmp(out, twice, sizeof(out)) == 0);
  EXPECT_INVALID(rh_engine_lookup_matrix(version, NULL, columns[0].data, width, NULL, NULL), "batch is NULL");
  EXPECT_INVALID(rh_engine_lookup_matrix(version, &batch, NULL, width, NULL, NULL), "out of feature 0 is NULL");
  EXPECT_INVALID(rh_engine_lookup_matrix(version, &batch, columns[0].data, width - 1, NULL, NULL),
                 "expected at least the width of all features");

  EXPECT_FAILS(rh_engine_lookup_cuda(version, &batch, columns, NULL, NULL, NULL), RH_UNSUPPORTED,
               "create it with the option 'device'");
  batch.memory = RH_DEVICE_MEMORY;
  EXPECT_INVALID(rh_engine_lookup(version, &batch, columns, NULL, NULL), "arrays on a GPU are rh_engine_lookup_cuda's");
  batch.memory = RH_HOST_MEMORY;
  batch.offsets = offsets;
  EXPECT_INVALID(rh_engine_lookup(version, &batch, columns, NULL, NULL),
                 "one of offsets, lengths and hotness, found 2");
  batch.lengths = NULL;
  batch.offsets = NULL;
  const int32_t hotness[] = {1, 1, 1, 0};
  batch.hotness = hotness;
  EXPECT_INVALID(rh_engine_lookup(version, &batch, columns, NULL, NULL), "hotness of feature 'shop' is 1");
  batch.batch_size = 0;
  batch.num_ids = 0;
  EXPECT(rh_engine_lookup(version, &batch, columns, NULL, NULL) == RH_OK);
  EXPECT_FAILS(rh_engine_gather(version, 4, cities, 3, row[0], NULL, NULL), RH_NOT_FOUND, "there is no table 4");
  rh_engine_close(version);
  return 0;
}

static int counts_unknown_ids(void) {
  rh_engine* engine = NULL;
  rh_engine_version* version = NULL;
  const int64_t ids[] = {-1, INT64_MAX, 0};
  float rows[3][4];
  rh_engine_answer answer = {0, 0};
  EXPECT(rh_engine_create("{\"out_of_range\": \"zero\"}", &engine) == RH_OK);
  EXPECT(rh_engine_open(engine, golden_chain, CHAIN_LAST, 0, &version) == RH_OK);
  EXPECT(rh_engine_gather(version, 0, ids, 3, rows[0], &answer, NULL) == RH_OK);
  EXPECT(answer.num_unknown == 2 && rows[0][0] == 0 && rows[1][3] == 0);
  int64_t size = 0, capacity = 2;
  char* text = malloc(capacity);
  EXPECT(text != NULL && rh_engine_metrics(engine, NULL, 0, &size) == RH_OK && size > 100);
  text[1] = 'x';
  EXPECT(rh_engine_metrics(engine, text, 2, &size) == RH_OK && size > 2 && text[0] == '\0' && text[1] == 'x');
  for (int tries = 0; tries < 10 && size > capacity; ++tries) { /* the text grows with its numbers from call to call */
    free(text);
    capacity = size;
    text = malloc(capacity);
    EXPECT(text != NULL && rh_engine_metrics(engine, text, capacity, &size) == RH_OK);
  }
  EXPECT(size <= capacity && (int64_t)strlen(text) == size - 1);
  EXPECT(strstr(text, "unknown_ids_total{model=\"chain\",version=\"" CHAIN_LAST "\",table=\"city\"} 2\n") != NULL);
  free(text);
  rh_engine_close(version);
  rh_engine_destroy(engine);
  return 0;
}

static void close_then_run(void* context, int64_t total, int64_t cost, rh_range_body body, void* argument) {
  rh_engine_version** version = context;
  (void)cost;
  rh_engine_close(*version);
  *version = NULL;
  body(argument, 0, total);
}

static int a_call_in_flight_keeps_its_version(void) {
  rh_engine* engine = NULL;
  rh_engine_version* version = NULL;
  const int64_t ids[] = {3, 2, 4};
  float before[3][4], rows[3][4];
  EXPECT(rh_engine_create(NULL, &engine) == RH_OK);
  EXPECT(rh_engine_open(engine, golden_chain, NULL, 0, &version) == RH_OK);
  EXPECT(rh_engine_gather(version, 0, ids, 3, before[0], NULL, NULL) == RH_OK);
  const rh_executor executor = {close_then_run, &version, 0, NULL};
  EXPECT(rh_engine_gather(version, 0, ids, 3, rows[0], NULL, &executor) == RH_OK && version == NULL);
  EXPECT(memcmp(before, rows, sizeof(rows)) == 0);
  rh_engine_destroy(engine);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  snprintf(golden_chain, sizeof(golden_chain), "%s/golden_chain", argv[1]);
  return refuses_what_it_does_not_take() + looks_up_and_gathers(NULL) + looks_up_and_gathers("{\"memory\": \"pin\"}") +
         counts_unknown_ids() + a_call_in_flight_keeps_its_version();
}
