/* How the C programs here check: a check that fails names its line, and ends the function with 1. */
#ifndef RANKHOUSE_TESTS_KERNELS_EXPECT_H_
#define RANKHOUSE_TESTS_KERNELS_EXPECT_H_

#include <stdio.h>
#include <string.h>

#include "rankhouse/kernels.h"

#define EXPECT(condition)                                                                      \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, rh_last_error()); \
      return 1;                                                                                \
    }                                                                                          \
  } while (0)

#define EXPECT_FAILS(call, status, text) EXPECT((call) == (status) && strstr(rh_last_error(), (text)) != NULL)

#define EXPECT_INVALID(call, text) EXPECT_FAILS(call, RH_INVALID_ARGUMENT, text)

/* The array has these elements and no others, to the bit. */
#define EXPECT_ELEMENTS(type, array, ...) \
  EXPECT(sizeof(array) == sizeof((type[]){__VA_ARGS__}) && memcmp((array), (type[]){__VA_ARGS__}, sizeof(array)) == 0)

#endif /* RANKHOUSE_TESTS_KERNELS_EXPECT_H_ */
