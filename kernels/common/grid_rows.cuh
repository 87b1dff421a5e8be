/* grid_rows.cuh - launchers that have a row in the second dimension of a grid launch more rows than it can have in parts. */
#pragma once

#include <stdint.h>

constexpr uint32_t GRID_ROWS_MAX = 65535;

static inline uint32_t grid_rows(uint32_t rows)
{
    return rows < GRID_ROWS_MAX ? rows : GRID_ROWS_MAX;
}
