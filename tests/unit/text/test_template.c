#include "test.h"
TEST(x) { }
