/* safetensors.h - one safetensors file: its tensors put on a tensor_list.
 *
 *     header length u64, header (JSON object), data
 *     "name": {"dtype": "F16", "shape": [4, 8], "data_offsets": [0, 64]}    offsets count from the data
 *     "__metadata__": {"key": "text", ...}                                  ignored
 *
 * As strict as the reference: the header has at most 100 MB and starts with '{'; ranges must not overlap and
 * leave no byte of the data unused. Names stand once. A scalar (shape []) becomes [1]; a dimension of 0 is
 * a tensor of no bytes. Data has whatever alignment the file gives it.
 * Source: github.com/huggingface/safetensors, safetensors/src/tensor.rs (SafeTensors::read_metadata). */
#pragma once

#include "formats/tensor_list.h"

/* Parses a file's bytes, borrowed by the views, and adds its tensors to `tensors`, which keeps those it got
 * even when this fails. Errors: STATUS_CORRUPT, STATUS_INCOMPLETE, STATUS_UNSUPPORTED (a dtype or rank),
 * STATUS_LIMIT, STATUS_NOMEM; the sentence names file, offset and tensor. */
enum status safetensors_parse(struct slice bytes, const char *file, struct tensor_list *tensors,
                              struct error *err);

/* Offset in the file of a tensor's entry, for a sentence; 8, the start of the header, when its name is
 * written with escapes. bytes: a file that safetensors_parse took. Linear in the header. */
uint64_t safetensors_entry_offset(struct slice bytes, const char *name);
