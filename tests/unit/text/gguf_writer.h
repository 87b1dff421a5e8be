#pragma once

#include <jansson.h>

/* Writes the tokenizer of a tokenizer.json to a GGUF at `path`: byte-level with the pre-tokenizer
 * `pre`, or, with pre NULL, SentencePiece with scores by the order of the merges (as the pieces of
 * Llama and Mistral have them). bos: the id that is put in front, or -1. */
void gguf_write_tokenizer(const char *path, const json_t *root, const char *pre, int bos);
