/* pins.h - --pin-prompt as tokens: what a conversation with that system prompt begins with. */
#pragma once

#include "cli/load.h"

/* Fills l->pins. Errors: STATUS_INVALID (the model has no chat template, or it refuses a system prompt), STATUS_NOMEM. */
enum status pins_make(const struct config *config, struct loaded *l, struct error *err);
void pins_end(struct loaded *l);
