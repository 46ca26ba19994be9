/* rankhouse/rows.h from C: the bits of each format by hand, what is refused, and memory for tables. */
#include <math.h>

#include "expect.h"

static int test_row_bytes(void) {
  EXPECT(rh_row_bytes(RH_FLOAT32, 1) == 4 && rh_row_bytes(RH_FLOAT32, 5) == 20);
  EXPECT(rh_row_bytes(RH_FLOAT16, 5) == 10 && rh_row_bytes(RH_BFLOAT16, 1) == 2);
  EXPECT(rh_row_bytes(RH_INT8_ROWWISE, 5) == 13);
  EXPECT(rh_row_bytes(4, 5) == 0 && rh_row_bytes(-1, 5) == 0);
  EXPECT(rh_row_bytes(RH_FLOAT32, 0) == 0 && rh_row_bytes(RH_FLOAT32, INT64_MIN) == 0);
  EXPECT(rh_row_bytes(RH_FLOAT32, INT32_MAX) == 4 * (int64_t)INT32_MAX);
  EXPECT(rh_row_bytes(RH_FLOAT32, (int64_t)INT32_MAX + 1) == 0 && rh_row_bytes(RH_INT8_ROWWISE, INT64_MAX) == 0);
  return 0;
}

static int test_float16(void) {
  const float rows[] = {1, -2, 65504, 65520, 0x1p-24f, 0x1p-25f, 1 + 0x1p-11f, 1 + 0x3p-11f};
  uint16_t halves[8];
  EXPECT(rh_quantize_rows(rows, 8, 1, RH_FLOAT16, 0, halves, NULL) == RH_OK);
  EXPECT_ELEMENTS(uint16_t, halves, 0x3C00, 0xC000, 0x7BFF, 0x7C00, 0x0001, 0x0000, 0x3C00, 0x3C02);
  float back[8];
  EXPECT(rh_dequantize_rows(halves, 8, 1, RH_FLOAT16, 0, back, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, back, 1, -2, 65504, INFINITY, 0x1p-24f, 0, 1, 1 + 0x1p-9f);
  return 0;
}

static int test_bfloat16_of_width_5_with_a_stride(void) {
  const float rows[] = {1, -2, 1 + 0x1p-8f, 1 + 0x3p-8f, -INFINITY, 0, 3, 4, 5, 6};
  uint16_t packed[2][6];
  memset(packed, 0xEE, sizeof(packed));
  EXPECT(rh_quantize_rows(rows, 2, 5, RH_BFLOAT16, sizeof(packed[0]), packed, NULL) == RH_OK);
  EXPECT_ELEMENTS(uint16_t, packed[0], 0x3F80, 0xC000, 0x3F80, 0x3F82, 0xFF80, 0xEEEE);
  EXPECT_ELEMENTS(uint16_t, packed[1], 0x0000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0xEEEE);
  float back[10];
  EXPECT(rh_dequantize_rows(packed, 2, 5, RH_BFLOAT16, sizeof(packed[0]), back, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, back, 1, -2, 1, 1 + 0x1p-6f, -INFINITY, 0, 3, 4, 5, 6);
  return 0;
}

static int test_int8(void) {
  const float rows[] = {10, 265, 11, 12, 264, 7, 7, 7, 7, 7};
  uint8_t packed[2][13];
  EXPECT(rh_quantize_rows(rows, 2, 5, RH_INT8_ROWWISE, 0, packed, NULL) == RH_OK);
  EXPECT(memcmp(packed[0], (uint8_t[]){0, 255, 1, 2, 254}, 5) == 0);
  EXPECT(memcmp(packed[0] + 5, (float[]){1, 10}, 8) == 0); /* scale, offset */
  EXPECT(memcmp(packed[1], (uint8_t[]){0, 0, 0, 0, 0}, 5) == 0);
  EXPECT(memcmp(packed[1] + 5, (float[]){0, 7}, 8) == 0);
  float back[10];
  EXPECT(rh_dequantize_rows(packed, 2, 5, RH_INT8_ROWWISE, 0, back, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, back, 10, 265, 11, 12, 264, 7, 7, 7, 7, 7);

  uint8_t narrow[9];
  EXPECT(rh_quantize_rows(&rows[1], 1, 1, RH_INT8_ROWWISE, 0, narrow, NULL) == RH_OK);
  EXPECT(rh_dequantize_rows(narrow, 1, 1, RH_INT8_ROWWISE, 0, back, NULL) == RH_OK);
  EXPECT(back[0] == 265);
  return 0;
}

static int test_rows_that_int8_cannot_hold(void) {
  float rows[2][5] = {{1, 2, 3, 4, 5}, {1, 2, NAN, INFINITY, 5}};
  uint8_t packed[2][13];
  EXPECT_INVALID(rh_quantize_rows(rows[0], 2, 5, RH_INT8_ROWWISE, 0, packed, NULL), "row 1, column 2 is ");
  rows[1][2] = 3;
  EXPECT_INVALID(rh_quantize_rows(rows[0], 2, 5, RH_INT8_ROWWISE, 0, packed, NULL), "row 1, column 3 is inf");
  rows[1][0] = -3e38f, rows[1][3] = 3e38f;
  EXPECT_INVALID(rh_quantize_rows(rows[0], 2, 5, RH_INT8_ROWWISE, 0, packed, NULL),
                 "row 1 runs from -3e+38 (column 0) to 3e+38 (column 3)");
  return 0;
}

static int test_lookups_read_every_type(void) {
  const float values[] = {0, 255, 1, 2, 4, 3, 258, 5, 4, 7};
  char packed[2][20];
  for (int32_t type = RH_FLOAT32; type <= RH_INT8_ROWWISE; ++type) {
    EXPECT(rh_quantize_rows(values, 2, 5, type, sizeof(packed[0]), packed, NULL) == RH_OK);
    float expected[2][5], out[5];
    EXPECT(rh_dequantize_rows(packed, 2, 5, type, sizeof(packed[0]), expected[0], NULL) == RH_OK);
    const rh_table table = {.rows = packed, .num_rows = 2, .dim = 5, .stride = sizeof(packed[0]), .type = type};
    const rh_lookup lookup = {.tables = &table,
                              .feature_tables = (int32_t[]){0},
                              .combiners = (int32_t[]){RH_SUM},
                              .ids = (int64_t[]){1, 0},
                              .hotness = (int32_t[]){2},
                              .num_ids = 2,
                              .batch_size = 1,
                              .num_tables = 1,
                              .num_features = 1};
    const rh_feature_rows out_rows = {out, 5};
    EXPECT(rh_pooled_lookup(&lookup, &out_rows, NULL, NULL) == RH_OK);
    for (int d = 0; d < 5; ++d) EXPECT(out[d] == expected[0][d] + expected[1][d]);
  }
  return 0;
}

static int test_errors(void) {
  float rows[5] = {0};
  char packed[20];
  EXPECT(rh_quantize_rows(NULL, 0, 5, RH_FLOAT16, 0, NULL, NULL) == RH_OK);
  EXPECT(rh_dequantize_rows(NULL, 0, 5, RH_FLOAT16, 0, NULL, NULL) == RH_OK);
  EXPECT_INVALID(rh_quantize_rows(NULL, 1, 5, RH_FLOAT16, 0, packed, NULL), "rows or quantized is NULL");
  EXPECT_INVALID(rh_quantize_rows(rows, 1, 5, RH_FLOAT16, 0, NULL, NULL), "rows or quantized is NULL");
  EXPECT_INVALID(rh_quantize_rows(rows, -1, 5, RH_FLOAT16, 0, packed, NULL), "rows have shape [-1, 5]");
  EXPECT_INVALID(rh_quantize_rows(rows, 1, 0, RH_FLOAT16, 0, packed, NULL), "rows have shape [1, 0]");
  EXPECT_INVALID(rh_quantize_rows(rows, 1, INT64_MAX, RH_FLOAT16, 0, packed, NULL), "a width of 1 to 2^31 - 1");
  EXPECT_INVALID(rh_quantize_rows(rows, 1, 5, 9, 0, packed, NULL), "row type 9");
  EXPECT_INVALID(rh_quantize_rows(rows, 1, 5, RH_FLOAT16, 9, packed, NULL), "at least the 10 bytes of a row");
  EXPECT_INVALID(rh_dequantize_rows(NULL, 1, 5, RH_FLOAT16, 0, rows, NULL), "rows or quantized is NULL");
  EXPECT_INVALID(rh_dequantize_rows(packed, 1, 5, RH_FLOAT16, 0, NULL, NULL), "rows or quantized is NULL");
  EXPECT_INVALID(rh_dequantize_rows(packed, 1, 5, RH_INT8_ROWWISE, -1, rows, NULL), "stride is -1 bytes");
  return 0;
}

static int test_memory(void) {
  const int64_t bytes = (4 << 20) + 1;
  void* memory = NULL;
  EXPECT(rh_allocate(bytes, &memory) == RH_OK);
  char* content = memory;
  EXPECT((uintptr_t)memory % (2 << 20) == 0 && content[0] == 0 && content[bytes - 1] == 0);
  content[0] = content[bytes - 1] = 1;
  EXPECT(rh_advise_huge_pages(content + 1, bytes - 1) == RH_OK);
  EXPECT(content[0] == 1 && content[1] == 0 && content[bytes - 1] == 1);
  rh_free(memory, bytes);

  EXPECT(rh_allocate(0, &memory) == RH_OK && memory == NULL);
  EXPECT(rh_advise_huge_pages(NULL, 0) == RH_OK);
  rh_free(NULL, bytes);
  EXPECT_FAILS(rh_allocate(INT64_MAX, &memory), RH_OUT_OF_MEMORY, "the system has no 9223372036854775807 bytes");
  EXPECT(memory == NULL);
  EXPECT_INVALID(rh_allocate(-1, &memory), "bytes is -1");
  EXPECT_INVALID(rh_allocate(1, NULL), "memory is NULL");
  EXPECT_INVALID(rh_advise_huge_pages(NULL, 1), "memory is NULL");
  EXPECT_INVALID(rh_advise_huge_pages(&memory, -1), "bytes is -1");
  return 0;
}

int main(void) {
  return test_row_bytes() || test_float16() || test_bfloat16_of_width_5_with_a_stride() || test_int8() ||
         test_rows_that_int8_cannot_hold() || test_lookups_read_every_type() || test_errors() || test_memory();
}
