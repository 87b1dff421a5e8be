/* tiny_model.h - a struct api_model over a tokenizer whose tokens are easy to name.
 *
 * Byte-level: ids 0..255 are the bytes; from 256 on come `tokens` (raw bytes each), then the special tokens <s>, </s>
 * (the end of sequence) and <x>. SentencePiece: <unk>, <s>, </s>, <0x00>..<0xFF>, then `tokens`. Its chat template is
 * "role: content\n" per message (chat_encode of this file, in place of src/text/chat.c). No cmocka: fuzzers use it too. */
#pragma once

#include "api/api.h"
#include "text/tokenizer.h"

struct tiny_model {
    struct api_model api;
    struct tokenizer *tok;
    int32_t first;       /* id of tokens[0] */
    int32_t bos, eos, x; /* special ids; x: a special token that ends nothing */
};

void tiny_model_open(struct tiny_model *model, const char *const *tokens, uint32_t count,
                     bool sentencepiece);
void tiny_model_close(struct tiny_model *model);
