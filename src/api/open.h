/* open.h - what opening a request shares between the JSON of HTTP (api_open.c) and ZeroMQ's messages (proto_open.c).
 *
 * A message becomes the JSON object that would ask HTTP for the same, so that every check and default is one piece of
 * code. What JSON has no field for, or is too bulky for it (token ids), stands beside it. */
#pragma once

#include <jansson.h>

#include "api/api.h"

struct open_ids {
    const int32_t *ids;
    size_t count;
};

struct open_message {
    const struct open_ids *
        lists; /* [list_count] prompts as ids, borrowed; none: `prompt` or `messages` of the body */
    size_t list_count;
    int32_t priority;
    uint64_t cache_salt; /* 0: none */
    int64_t timeout_ns;  /* 0: none */
};

/* Reads a generation request from `body`, which may be edited. message: NULL for HTTP. Fills *out. */
void open_generation(const struct api_model *model, enum api_route route, const json_t *body,
                     const struct open_message *message, const struct api_client *client,
                     int64_t opened_ns, struct api_answer *out);
/* 503 while loading; while draining for generation. */
bool open_state(enum api_state state, enum api_route route, struct api_fault *fault);
