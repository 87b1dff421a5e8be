/* model_build.h - private to model/: from the weight table to the stages. */
#pragma once

#include "model/model.h"
#include "model/weight_table.h"

/* Fills *plan (zeroed); stages, names and frequencies come from the table's arena. Errors: as model_open. */
enum status model_build_plan(struct weight_table *table, const struct model_options *options,
                             struct plan *plan, struct error *err);
