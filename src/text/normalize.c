#include "text/normalize.h"

#include <assert.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/charsmap.h"
#include "text/unicode_class.h"
#include "text/utf8_part.h"

void range_list_fini(struct range_list *list)
{
    free(list->at);
    *list = (struct range_list){0};
}

enum status range_list_add(struct range_list *list, size_t begin, size_t end)
{
    if (begin >= end) return STATUS_OK;
    if (list->count && list->at[list->count - 1].end >= begin) {
        list->at[list->count - 1].end = end;
        return STATUS_OK;
    }
    if (list->count == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 16;
        struct text_range *at = realloc(list->at, cap * sizeof *at);
        if (!at) return STATUS_NOMEM;
        list->at = at;
        list->cap = cap;
    }
    list->at[list->count++] = (struct text_range){begin, end};
    return STATUS_OK;
}

/* Index of the first range that ends behind `at` (by_end), or begins at or behind it. */
static size_t first_behind(struct range_view all, size_t at, bool by_end)
{
    size_t low = 0, high = all.count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (by_end ? all.at[middle].end <= at : all.at[middle].begin < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct range_view range_view_of(struct range_view all, size_t begin, size_t end)
{
    size_t first = first_behind(all, begin, true), last = first_behind(all, end, false);

    return (struct range_view){first < last ? all.at + first : NULL,
                               first < last ? last - first : 0};
}

enum status normalizer_add(struct normalizer *n, enum normalize_kind kind, struct slice from,
                           struct slice with, struct error *err)
{
    return normalizer_add_step(n, (struct normalize_step){.kind = kind}, from, with, err);
}

enum status normalizer_add_step(struct normalizer *n, struct normalize_step given,
                                struct slice from, struct slice with, struct error *err)
{
    if (n->count == NORMALIZE_STEPS_MAX || from.len > NORMALIZE_TEXT_MAX ||
        with.len > NORMALIZE_TEXT_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the normaliser has more than %d steps or replaces more than %d bytes",
                         NORMALIZE_STEPS_MAX, NORMALIZE_TEXT_MAX);
    struct normalize_step *step = &n->steps[n->count++];
    *step = given;
    step->from_len = (uint8_t)from.len;
    step->with_len = (uint8_t)with.len;
    if (from.len) memcpy(step->from, from.ptr, from.len);
    if (with.len) memcpy(step->with, with.ptr, with.len);
    return STATUS_OK;
}

void normalized_set(struct normalized *state, struct slice text, struct range_view marks)
{
    state->text = text;
    state->marks = marks;
    state->moved = false;
}

void normalized_fini(struct normalized *state)
{
    for (int i = 0; i < 2; i++) {
        buf_fini(&state->buffers[i]);
        range_list_fini(&state->lists[i]);
    }
}

/* --- one step: from state->text into the other buffer --- */

struct output {
    const struct normalized *from;
    struct buf *text;
    struct range_list *marks;
    enum status st;
};

static struct output output_begin(struct normalized *state)
{
    struct output out = {state, &state->buffers[state->turn], &state->lists[state->turn],
                         STATUS_OK};

    buf_clear(out.text);
    out.marks->count = 0;
    return out;
}

static enum status output_end(struct normalized *state, struct output *out)
{
    if (!out->st) out->st = buf_status(out->text);
    state->text = buf_slice(out->text);
    state->marks = (struct range_view){out->marks->at, out->marks->count};
    state->turn ^= 1;
    state->moved = true;
    return out->st;
}

/* Copies [begin, end) as it stands, marks byte by byte. */
static void keep(struct output *out, size_t begin, size_t end)
{
    struct range_view marks = range_view_of(out->from->marks, begin, end);
    const size_t base = out->text->len - begin;

    for (size_t i = 0; i < marks.count && !out->st; i++) {
        size_t b = marks.at[i].begin > begin ? marks.at[i].begin : begin;
        size_t e = marks.at[i].end < end ? marks.at[i].end : end;
        out->st = range_list_add(out->marks, base + b, base + e);
    }
    buf_append(out->text, out->from->text.ptr + begin, end - begin);
}

/* Writes `with` in the place of [begin, end): marked when any of it was. */
static void change(struct output *out, size_t begin, size_t end, const void *with, size_t len)
{
    if (!out->st && range_view_of(out->from->marks, begin, end).count)
        out->st = range_list_add(out->marks, out->text->len, out->text->len + len);
    buf_append(out->text, with, len);
}

static const char *find(const struct normalize_step *step, const char *text, size_t len)
{
    if (step->from_len == 1) return memchr(text, step->from[0], len);
    return memmem(text, len, step->from, step->from_len);
}

static enum status replace(const struct normalize_step *step, struct normalized *state)
{
    const char *text = state->text.ptr, *hit;
    const size_t len = state->text.len;
    size_t at = 0;

    if (!step->from_len || !find(step, text, len)) return STATUS_OK;
    struct output out = output_begin(state);
    while (at < len && (hit = find(step, text + at, len - at))) {
        size_t begin = (size_t)(hit - text);
        if (begin > at) keep(&out, at, begin);
        change(&out, begin, begin + step->from_len, step->with, step->with_len);
        at = begin + step->from_len;
    }
    if (at < len) keep(&out, at, len);
    return output_end(state, &out);
}

static enum status prepend(const struct normalize_step *step, struct normalized *state)
{
    struct slice with = slice_of(step->with, step->with_len);

    if (!state->text.len) return STATUS_OK;
    if (step->kind == NORMALIZE_PREPEND_MISSING && slice_starts(state->text, with))
        return STATUS_OK;
    struct output out = output_begin(state);
    buf_append_slice(out.text, with);
    keep(&out, 0, state->text.len);
    return output_end(state, &out);
}

static enum status squeeze(const struct normalize_step *step, struct normalized *state)
{
    const struct slice text = state->text, from = slice_of(step->from, step->from_len);
    size_t kept = 0, begin, end;
    struct output out = {0};

    for (begin = 0; from.len && begin < text.len; begin = end) {
        const char *hit = find(step, text.ptr + begin, text.len - begin);
        if (!hit) break;
        begin = (size_t)(hit - text.ptr);
        end = begin + from.len;
        while (slice_starts(slice_of(text.ptr + end, text.len - end), from))
            end += from.len;
        if (end - begin < 2 * from.len) continue;
        if (!out.text) out = output_begin(state);
        if (begin > kept) keep(&out, kept, begin);
        change(&out, begin, end, step->with, step->with_len);
        kept = end;
    }
    if (!out.text) return STATUS_OK;
    if (text.len > kept) keep(&out, kept, text.len);
    return output_end(state, &out);
}

static enum status strip(const struct normalize_step *step, struct normalized *state)
{
    const uint8_t *text = (const uint8_t *)state->text.ptr, *end = text + state->text.len;
    const uint8_t *first = text, *last = end;
    unsigned len;

    for (; step->left && first < end && (class_read(first, &len) & CLASS_SPACE); first += len)
        ;
    while (step->right && last > first && (class_read(utf8_before(last), &len) & CLASS_SPACE))
        last -= len;
    if (first == text && last == end) return STATUS_OK;
    struct output out = output_begin(state);
    if (last > first) keep(&out, (size_t)(first - text), (size_t)(last - text));
    return output_end(state, &out);
}

static enum status map_chars(const struct normalize_step *step, struct normalized *state)
{
    const uint8_t *text = (const uint8_t *)state->text.ptr;
    const size_t size = state->text.len;
    struct charsmap_reading reading = {step->map, text + size, NULL, step->by_clusters};
    struct output out = {0};
    struct slice with;
    size_t kept = 0, len;

    for (size_t at = 0; at < size; at += len) {
        if (!charsmap_next(&reading, text + at, &len, &with)) continue;
        if (!out.text) out = output_begin(state);
        if (at > kept) keep(&out, kept, at);
        change(&out, at, at + len, with.ptr, with.len);
        kept = at + len;
    }
    if (!out.text) return STATUS_OK;
    if (size > kept) keep(&out, kept, size);
    return output_end(state, &out);
}

/* Whether the character at p parts words. */
static bool parts_words(const struct normalize_step *step, const uint8_t *p, unsigned *len)
{
    const uint8_t class = class_read(p, len);

    return step->kind == NORMALIZE_SPM_WORDS ? *p == ' ' : (class & CLASS_SPACE) != 0;
}

/* SentencePiece drops at the end what looks like its own marks, too. */
static const uint8_t *last_word_end(const uint8_t *text, const uint8_t *end, struct slice mark)
{
    for (;;) {
        if (end > text && end[-1] == ' ')
            end--;
        else if ((size_t)(end - text) >= mark.len && !memcmp(end - mark.len, mark.ptr, mark.len))
            end -= mark.len;
        else
            return end;
    }
}

static enum status mark_words(const struct normalize_step *step, struct normalized *state)
{
    const uint8_t *text = (const uint8_t *)state->text.ptr, *end = text + state->text.len,
                  *p = text;
    const struct slice with = slice_of(step->with, step->with_len);
    struct output out = output_begin(state);
    unsigned len;

    if (step->kind == NORMALIZE_SPM_WORDS) end = last_word_end(text, end, with);
    while (p < end) {
        if (parts_words(step, p, &len)) {
            p += len;
            continue;
        }
        const uint8_t *word = p;
        while (p < end && !parts_words(step, p, &len))
            p += len;
        bool missing = step->kind == NORMALIZE_SPM_WORDS
                           ? out.text->len || step->left
                           : !slice_starts(slice_of(word, (size_t)(p - word)), with);
        if (missing) buf_append_slice(out.text, with);
        keep(&out, (size_t)(word - text), (size_t)(p - text));
    }
    return output_end(state, &out);
}

/* Composes the run [begin, end), which holds characters that NFC may change. */
static void compose(struct output *out, size_t begin, size_t end)
{
    const utf8proc_uint8_t *run = (const utf8proc_uint8_t *)out->from->text.ptr + begin;
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t len = utf8proc_map(run, (utf8proc_ssize_t)(end - begin), &composed,
                                        UTF8PROC_STABLE | UTF8PROC_COMPOSE);

    if (len < 0) {
        out->st = STATUS_NOMEM; /* the text is well-formed: nothing else can be wrong */
        return;
    }
    if ((size_t)len == end - begin && memcmp(composed, run, (size_t)len) == 0)
        keep(out, begin, end);
    else
        change(out, begin, end, composed, (size_t)len);
    free(composed);
}

/* NFC run by run: a run is a character that stays itself and those behind it that may join it or
 * change places. Characters that the reference's older Unicode does not know stay themselves. */
static enum status nfc(struct normalized *state)
{
    const uint8_t *text = (const uint8_t *)state->text.ptr, *end = text + state->text.len;
    const uint8_t *p = text, *start = text, *kept = text;
    unsigned len;

    while (p < end && !(class_read(p, &len) & CLASS_NFC_ACTIVE))
        p += len;
    if (p == end) return STATUS_OK;
    struct output out = output_begin(state);
    for (p = text; p < end && !out.st; p += len) {
        uint32_t c = utf8_read(p, &len);
        if (!(unicode_classes[c] & CLASS_NFC_ACTIVE)) {
            /* A mark that only a newer Unicode knows stays where it is and joins nothing. */
            start = c >= 0x300 && utf8proc_get_property((utf8proc_int32_t)c)->combining_class
                        ? p + len
                        : p;
            continue;
        }
        if (start > kept) keep(&out, (size_t)(kept - text), (size_t)(start - text));
        while (p < end && (class_read(p, &len) & CLASS_NFC_ACTIVE))
            p += len;
        compose(&out, (size_t)(start - text), (size_t)(p - text));
        kept = start = p;
        len = 0;
    }
    if (end > kept) keep(&out, (size_t)(kept - text), (size_t)(end - text));
    return output_end(state, &out);
}

enum status normalize_utf8(struct normalized *state)
{
    const uint8_t *text = (const uint8_t *)state->text.ptr;
    const size_t size = state->text.len;
    size_t at = utf8_valid_len(state->text), kept = 0;
    enum utf8_part kind;
    unsigned len = 0;

    if (at == size) return STATUS_OK;
    struct output out = output_begin(state);
    for (; at < size; at += len) {
        len = utf8_part(text + at, size - at, &kind);
        if (kind == UTF8_GOOD) continue;
        if (at > kept) keep(&out, kept, at);
        change(&out, at, at + len, "\xef\xbf\xbd", 3);
        kept = at + len;
    }
    if (size > kept) keep(&out, kept, size);
    return output_end(state, &out);
}

enum status normalize(const struct normalizer *n, struct normalized *state)
{
    enum status st = STATUS_OK;

    for (uint32_t i = 0; !st && i < n->count; i++) {
        switch (n->steps[i].kind) {
        case NORMALIZE_NFC: st = nfc(state); break;
        case NORMALIZE_REPLACE: st = replace(&n->steps[i], state); break;
        case NORMALIZE_SQUEEZE: st = squeeze(&n->steps[i], state); break;
        case NORMALIZE_STRIP: st = strip(&n->steps[i], state); break;
        case NORMALIZE_CHARSMAP: st = map_chars(&n->steps[i], state); break;
        case NORMALIZE_WORDS:
        case NORMALIZE_SPM_WORDS: st = mark_words(&n->steps[i], state); break;
        case NORMALIZE_PREPEND:
        case NORMALIZE_PREPEND_MISSING: st = prepend(&n->steps[i], state); break;
        }
    }
    return st;
}
