/* tokenizer_json.c - a tokenizer from tokenizer.json and the config files beside it.
 *
 * Every part is either reproduced or refused by name. Source of the format: Hugging Face tokenizers
 * 0.23. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/weights.h"
#include "text/spm.h"
#include "text/tokenizer_impl.h"

#define SPACE_MARK "\xe2\x96\x81"

static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));

    return type ? type : "?";
}

static bool flag(const json_t *part, const char *name, bool missing)
{
    const json_t *value = json_object_get(part, name);

    return json_is_boolean(value) ? json_is_true(value) : missing;
}

static struct slice string_slice(const json_t *value)
{
    return slice_of(json_string_value(value), json_string_length(value));
}

static enum status unsupported(struct error *err, const char *what, const json_t *part)
{
    return error_set(err, STATUS_UNSUPPORTED, "tokenizer.json: the %s '%.64s' is not supported",
                     what, type_of(part));
}

/* --- normalizer --- */

/* Of regular expressions only the one that SentencePiece models have is known: runs of spaces. */
static enum status add_replace(const json_t *part, struct normalizer *out, struct error *err)
{
    const json_t *pattern = json_object_get(part, "pattern"),
                 *from = json_object_get(pattern, "String"),
                 *with = json_object_get(part, "content");

    if (json_is_string(with) &&
        slice_eq(string_slice(json_object_get(pattern, "Regex")), SLICE(" {2,}")))
        return normalizer_add(out, NORMALIZE_SQUEEZE, SLICE(" "), string_slice(with), err);
    if (!json_is_string(from) || !json_is_string(with))
        return error_set(err, STATUS_UNSUPPORTED,
                         "tokenizer.json: the normalizer 'Replace' with a Regex other than ' {2,}' "
                         "is not supported");
    return normalizer_add(out, NORMALIZE_REPLACE, string_slice(from), string_slice(with), err);
}

static enum status add_charsmap(struct tokenizer *tok, const json_t *part, struct error *err)
{
    const json_t *map = json_object_get(part, "precompiled_charsmap");
    enum status st;

    if (tok->charsmap || !json_is_string(map))
        return error_set(err, STATUS_UNSUPPORTED,
                         "tokenizer.json: a normalizer with %s Precompiled",
                         tok->charsmap ? "more than one" : "an empty");
    st = charsmap_open_base64(string_slice(map), &tok->charsmap, err);
    if (st) {
        error_prefix(err, "tokenizer.json");
        return st;
    }
    return normalizer_add_step(&tok->normalizer,
                               (struct normalize_step){.kind = NORMALIZE_CHARSMAP,
                                                       .by_clusters = true,
                                                       .map = tok->charsmap},
                               SLICE(""), SLICE(""), err);
}

static enum status load_normalizer(struct tokenizer *tok, const json_t *part, unsigned depth,
                                   struct error *err)
{
    struct normalizer *out = &tok->normalizer;
    const char *type = type_of(part);
    const json_t *list = json_object_get(part, "normalizers"), *item;
    enum status st = STATUS_OK;
    size_t i;

    if (!part || json_is_null(part)) return STATUS_OK;
    if (strcmp(type, "NFC") == 0)
        return normalizer_add(out, NORMALIZE_NFC, SLICE(""), SLICE(""), err);
    if (strcmp(type, "Replace") == 0) return add_replace(part, out, err);
    if (strcmp(type, "Precompiled") == 0) return add_charsmap(tok, part, err);
    if (strcmp(type, "Strip") == 0)
        return normalizer_add_step(
            out,
            (struct normalize_step){.kind = NORMALIZE_STRIP,
                                    .left = flag(part, "strip_left", false),
                                    .right = flag(part, "strip_right", false)},
            SLICE(""), SLICE(""), err);
    if (strcmp(type, "Prepend") == 0)
        return normalizer_add(out, NORMALIZE_PREPEND, SLICE(""),
                              string_slice(json_object_get(part, "prepend")), err);
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth > 4)
        return unsupported(err, "normalizer", part);
    json_array_foreach(list, i, item)
    {
        if (!st) st = load_normalizer(tok, item, depth + 1, err);
    }
    return st;
}

/* --- pre_tokenizer --- */

struct stage_plan {
    struct slice pattern;
    enum pretok_behavior behavior;
    bool literal, invert;
};
struct pretok_plan {
    struct stage_plan stages[PRETOK_STAGES_MAX];
    uint32_t count;
    bool byte_level; /* nothing may follow */
    bool words;      /* WhitespaceSplit, which must come first */
    bool metaspace;  /* alone, or behind it */
    bool prefix_space;
    uint32_t leaves;
};

static enum status plan_stage(struct pretok_plan *plan, struct stage_plan stage, struct error *err)
{
    if (plan->count == PRETOK_STAGES_MAX)
        return error_set(err, STATUS_LIMIT,
                         "tokenizer.json: the pre_tokenizer has more than %d parts",
                         PRETOK_STAGES_MAX);
    plan->stages[plan->count++] = stage;
    return STATUS_OK;
}

static enum status plan_split(const json_t *part, struct pretok_plan *plan, struct error *err)
{
    static const char *const behaviors[] = {"Isolated", "Removed", "MergedWithPrevious",
                                            "MergedWithNext", "Contiguous"};
    const json_t *pattern = json_object_get(part, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"),
                 *text = json_object_get(pattern, "String");
    const char *behavior = json_string_value(json_object_get(part, "behavior"));
    struct stage_plan stage = {.literal = !regex, .invert = flag(part, "invert", false)};

    stage.pattern = string_slice(regex ? regex : text);
    if (!stage.pattern.ptr || !behavior)
        return error_set(
            err, STATUS_CORRUPT,
            "tokenizer.json: a Split needs a pattern (Regex or String) and a behavior");
    for (unsigned i = 0; i < sizeof behaviors / sizeof *behaviors; i++) {
        if (strcmp(behavior, behaviors[i]) != 0) continue;
        stage.behavior = (enum pretok_behavior)i;
        return plan_stage(plan, stage, err);
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "tokenizer.json: the Split behavior '%.64s' is not known", behavior);
}

static enum status plan_leaf(const json_t *part, struct pretok_plan *plan, struct error *err)
{
    const char *type = type_of(part);

    plan->leaves++;
    if (plan->byte_level || plan->metaspace)
        return error_set(err, STATUS_UNSUPPORTED,
                         "tokenizer.json: a pre_tokenizer behind ByteLevel or Metaspace");
    if (strcmp(type, "Split") == 0) return plan_split(part, plan, err);
    if (strcmp(type, "Digits") == 0)
        return plan_stage(plan,
                          (struct stage_plan){.behavior = flag(part, "individual_digits", false)
                                                              ? PRETOK_ISOLATED
                                                              : PRETOK_CONTIGUOUS},
                          err);
    if (strcmp(type, "ByteLevel") == 0) {
        plan->byte_level = true;
        plan->prefix_space = flag(part, "add_prefix_space", true);
        if (!flag(part, "use_regex", true)) return STATUS_OK;
        return plan_stage(plan, (struct stage_plan){.pattern = SLICE(PRETOK_GPT2_PATTERN)}, err);
    }
    if (strcmp(type, "WhitespaceSplit") == 0 && plan->leaves == 1) {
        plan->words = true;
        return STATUS_OK;
    }
    if (strcmp(type, "Metaspace") == 0 && plan->leaves == (plan->words ? 2 : 1)) {
        plan->metaspace = true;
        return STATUS_OK;
    }
    return unsupported(err, "pre_tokenizer", part);
}

static enum status plan_pretok(const json_t *part, unsigned depth, struct pretok_plan *plan,
                               struct error *err)
{
    const json_t *list = json_object_get(part, "pretokenizers"), *item;
    enum status st = STATUS_OK;
    size_t i;

    if (!part || json_is_null(part)) return STATUS_OK;
    if (strcmp(type_of(part), "Sequence") != 0) return plan_leaf(part, plan, err);
    if (!json_is_array(list) || depth > 4) return unsupported(err, "pre_tokenizer", part);
    json_array_foreach(list, i, item)
    {
        if (!st) st = plan_pretok(item, depth + 1, plan, err);
    }
    return st;
}

/* words: behind a WhitespaceSplit, which leaves no space. The words are told apart by the marks that they get. */
static enum status load_metaspace(struct tokenizer *tok, const json_t *part, bool words,
                                  struct error *err)
{
    const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
    struct slice mark = string_slice(json_object_get(part, "replacement"));
    enum status st;

    if (!slice_eq(mark, SLICE(SPACE_MARK)))
        return error_set(err, STATUS_UNSUPPORTED, "tokenizer.json: a Metaspace that is not U+2581");
    if (!scheme) scheme = flag(part, "add_prefix_space", true) ? "always" : "never";
    if (words && (strcmp(scheme, "always") != 0 || !flag(part, "split", true)))
        return error_set(err, STATUS_UNSUPPORTED,
                         "tokenizer.json: a WhitespaceSplit with a Metaspace that is not always in "
                         "front or does not split");
    tok->pretok.kind = flag(part, "split", true) ? PRETOK_METASPACE : PRETOK_WHOLE;
    if (words) return normalizer_add(&tok->spaces, NORMALIZE_WORDS, SLICE(""), mark, err);
    st = normalizer_add(&tok->spaces, NORMALIZE_REPLACE, SLICE(" "), mark, err);
    if (!st && strcmp(scheme, "never") != 0)
        st = normalizer_add(&tok->spaces, NORMALIZE_PREPEND_MISSING, SLICE(""), mark, err);
    tok->spaces_first_only = strcmp(scheme, "first") == 0;
    return st;
}

/* The last part of a pre_tokenizer that may be a Sequence. */
static const json_t *last_leaf(const json_t *part)
{
    while (strcmp(type_of(part), "Sequence") == 0) {
        const json_t *list = json_object_get(part, "pretokenizers");
        part = json_array_get(list, json_array_size(list) - 1);
    }
    return part;
}

static enum status load_pretok(struct tokenizer *tok, const json_t *part, bool *byte_level,
                               struct error *err)
{
    struct pretok_plan plan = {0};
    struct slice patterns[PRETOK_STAGES_MAX];
    bool plain = true; /* regular expressions that isolate */
    enum status st = plan_pretok(part, 0, &plan, err);

    if (st) return st;
    *byte_level = plan.byte_level;
    if (plan.metaspace) return load_metaspace(tok, last_leaf(part), plan.words, err);
    if (plan.words)
        return error_set(err, STATUS_UNSUPPORTED,
                         "tokenizer.json: a WhitespaceSplit without a Metaspace behind it");
    if (plan.prefix_space && plan.leaves > 1)
        return error_set(
            err, STATUS_UNSUPPORTED,
            "tokenizer.json: ByteLevel with add_prefix_space behind another pre_tokenizer");
    if (plan.prefix_space)
        st = normalizer_add(&tok->spaces, NORMALIZE_PREPEND_MISSING, SLICE(""), SLICE(" "), err);
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct stage_plan *s = &plan.stages[i];
        patterns[i] = s->pattern.ptr ? s->pattern : SLICE("\\p{N}");
        plain = plain && !s->literal && !s->invert && s->behavior == PRETOK_ISOLATED;
    }
    if (!plan.count) return st;
    tok->pretok.kind = plain ? pretok_recognise(patterns, plan.count) : PRETOK_STAGES;
    if (tok->pretok.kind != PRETOK_STAGES) return st;
    for (uint32_t i = 0; !st && i < plan.count; i++)
        st = pretok_add_stage(&tok->pretok, plan.stages[i].pattern, plan.stages[i].literal,
                              plan.stages[i].behavior, plan.stages[i].invert, err);
    return st;
}

/* --- decoder --- */

struct decoder_plan {
    bool byte_level, byte_fallback, marks, strip;
};

static enum status plan_decoder(const json_t *part, unsigned depth, struct decoder_plan *plan,
                                struct error *err)
{
    const char *type = type_of(part);
    const json_t *list = json_object_get(part, "decoders"), *item;
    enum status st = STATUS_OK;
    size_t i;

    if (strcmp(type, "ByteLevel") == 0)
        plan->byte_level = true;
    else if (strcmp(type, "ByteFallback") == 0)
        plan->byte_fallback = true;
    else if (strcmp(type, "Fuse") == 0)
        return STATUS_OK;
    else if (strcmp(type, "Replace") == 0 &&
             slice_eq(string_slice(json_object_get(json_object_get(part, "pattern"), "String")),
                      SLICE(SPACE_MARK)) &&
             slice_eq(string_slice(json_object_get(part, "content")), SLICE(" ")))
        plan->marks = true;
    else if (strcmp(type, "Strip") == 0 &&
             slice_eq(string_slice(json_object_get(part, "content")), SLICE(" ")) &&
             json_integer_value(json_object_get(part, "start")) <= 1 &&
             json_integer_value(json_object_get(part, "stop")) == 0)
        plan->strip = json_integer_value(json_object_get(part, "start")) == 1;
    else if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
        plan->marks = true;
        plan->strip = scheme ? strcmp(scheme, "never") != 0 : flag(part, "add_prefix_space", true);
    } else if (strcmp(type, "Sequence") == 0 && json_is_array(list) && depth <= 4) {
        json_array_foreach(list, i, item)
        {
            if (!st) st = plan_decoder(item, depth + 1, plan, err);
        }
    } else
        return unsupported(err, "decoder", part);
    return st;
}

/* --- model --- */

static bool is_unigram(const json_t *model)
{
    return strcmp(type_of(model), "Unigram") == 0;
}

/* vocab: [[piece, score], ...], the place is the id. */
static enum status check_unigram(const json_t *model, struct error *err)
{
    const json_t *vocab = json_object_get(model, "vocab"), *unk = json_object_get(model, "unk_id");
    const json_t *entry;
    size_t i;

    json_array_foreach(vocab, i, entry)
    {
        if (!json_is_string(json_array_get(entry, 0)) || !json_is_number(json_array_get(entry, 1)))
            return error_set(err, STATUS_CORRUPT,
                             "tokenizer.json: piece %zu is not a text and a score", i);
    }
    if (!json_array_size(vocab) || json_array_size(vocab) > TOKENIZER_IDS_MAX)
        return error_set(err, STATUS_CORRUPT, "tokenizer.json: vocab must have 1 to %d pieces",
                         TOKENIZER_IDS_MAX);
    if (!json_is_integer(unk) || json_integer_value(unk) < 0 ||
        (size_t)json_integer_value(unk) >= json_array_size(vocab))
        return error_set(err, STATUS_UNSUPPORTED,
                         "tokenizer.json: a Unigram model needs an unk_id that is in its vocab");
    return STATUS_OK;
}

/* The pieces as an object of ids, like BPE's; of equal pieces the last counts, as in the library. NULL: no memory. */
static json_t *unigram_ids(const json_t *vocab)
{
    json_t *ids = json_object();
    const json_t *entry;
    size_t i;

    json_array_foreach(vocab, i, entry)
    {
        const json_t *text = json_array_get(entry, 0);
        if (json_object_setn_new(ids, json_string_value(text), json_string_length(text),
                                 json_integer((json_int_t)i))) {
            json_decref(ids);
            return NULL;
        }
    }
    return ids;
}

/* The number as the reference reads it: its parser takes the digits as an integer and divides by a power of ten, which is
 * up to one unit in the last place off. That decides between ways whose sums are equal. */
static double as_reference_reads(double value)
{
    char text[40];
    uint64_t digits = 0;
    int fraction = 0, precision = 15;

    do
        snprintf(text, sizeof text, "%.*e", precision - 1,
                 value); /* the fewest digits that tell it */
    while (precision++ < 17 && strtod(text, NULL) != value);
    const char *p = text, *end = strchr(text, 'e');
    if (!end) return value; /* not finite */
    int exponent = atoi(end + 1);
    while (end > text && end[-1] == '0')
        end--;
    for (bool point = false; p < end; p++) {
        if (*p == '.') point = true;
        if (*p < '0' || *p > '9') continue;
        digits = digits * 10 + (uint64_t)(*p - '0');
        fraction += point;
    }
    exponent -= fraction;
    if (exponent < -22 || exponent > 0)
        return value; /* powers that are exact, and numbers as scores are */
    double power = 1;
    while (exponent++ < 0)
        power *= 10;
    return value < 0 ? -((double)digits / power) : (double)digits / power;
}

static enum status load_scores(struct tokenizer *tok, const json_t *vocab, struct error *err)
{
    double *scores = calloc(tok->bpe.keys.count, sizeof *scores), low = 0;
    enum status st = STATUS_NOMEM;

    for (size_t i = 0; scores && i < json_array_size(vocab); i++) {
        scores[i] =
            as_reference_reads(json_number_value(json_array_get(json_array_get(vocab, i), 1)));
        if (!i || scores[i] < low) low = scores[i];
    }
    if (scores) st = unigram_build(&tok->unigram, &tok->bpe, scores, low);
    return st ? error_set(err, st, "no memory for the pieces") : st;
}

static enum status check_model(const json_t *model, struct error *err)
{
    static const char *const must_be_empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = json_string_value(json_object_get(model, "type"));

    if (is_unigram(model)) return check_unigram(model, err);
    if (!json_is_object(model) || !json_is_object(json_object_get(model, "vocab")))
        return error_set(err, STATUS_CORRUPT, "tokenizer.json: no model with a vocab");
    if (type ? strcmp(type, "BPE") != 0 : !json_is_array(json_object_get(model, "merges")))
        return unsupported(err, "model", model);
    for (size_t i = 0; i < sizeof must_be_empty / sizeof *must_be_empty; i++)
        if (json_string_length(json_object_get(model, must_be_empty[i])))
            return error_set(err, STATUS_UNSUPPORTED,
                             "tokenizer.json: a model with %s is not supported", must_be_empty[i]);
    if (json_number_value(json_object_get(model, "dropout")) > 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "tokenizer.json: a model with dropout gives other ids at every call");
    return STATUS_OK;
}

static enum status id_of(const json_t *value, struct slice text, int32_t *id, struct error *err)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value) || number < 0 || number >= TOKENIZER_IDS_MAX)
        return error_set(err, STATUS_CORRUPT,
                         "tokenizer.json: the id of '%.*s' must be an integer from 0 to %d",
                         (int)(text.len < 64 ? text.len : 64), text.ptr, TOKENIZER_IDS_MAX - 1);
    *id = (int32_t)number;
    return STATUS_OK;
}

static enum status load_added(struct tokenizer *tok, const json_t *list, const json_t *vocab,
                              struct error *err)
{
    const json_t *item;
    enum status st = STATUS_OK;
    size_t i;

    tok->added = calloc(json_array_size(list) + 1, sizeof *tok->added);
    if (!tok->added) return error_set(err, STATUS_NOMEM, "no memory for the added tokens");
    json_array_foreach(list, i, item)
    {
        struct slice text = string_slice(json_object_get(item, "content"));
        struct added_token *token = &tok->added[tok->added_count];
        char *copy = text.ptr ? arena_strdup(&tok->arena, text) : NULL;
        if (!text.ptr)
            return error_set(err, STATUS_CORRUPT, "tokenizer.json: added token %zu has no content",
                             i);
        if (!copy) return error_set(err, STATUS_NOMEM, "no memory for the added tokens");
        /* A text of the vocabulary keeps its id there, as in the library. */
        const json_t *known = json_object_getn(vocab, text.ptr, text.len);
        st = id_of(known ? known : json_object_get(item, "id"), text, &token->id, err);
        if (st) return st;
        token->content = slice_of(copy, text.len);
        token->special = flag(item, "special", false);
        token->single_word = flag(item, "single_word", false);
        token->lstrip = flag(item, "lstrip", false);
        token->rstrip = flag(item, "rstrip", false);
        token->normalized = flag(item, "normalized", !token->special);
        if (text.len) tok->added_count++;
    }
    return STATUS_OK;
}

static enum status load_vocab(struct tokenizer *tok, const json_t *vocab,
                              struct vocab_options options, struct error *err)
{
    const size_t count = json_object_size(vocab) + tok->added_count;
    struct vocab_entry *entries = calloc(count + 1, sizeof *entries);
    enum status st = STATUS_OK;
    const char *text;
    json_t *id;
    size_t n = 0, len;

    if (!entries) return error_set(err, STATUS_NOMEM, "no memory for the vocabulary");
    json_object_keylen_foreach((json_t *)vocab, text, len, id)
    {
        entries[n].text = slice_of(text, len);
        if (!st) st = id_of(id, entries[n].text, &entries[n].id, err);
        n++;
    }
    for (uint32_t i = 0; i < tok->added_count; i++)
        entries[n++] = (struct vocab_entry){
            tok->added[i].id, tok->added[i].content,
            /* BPE finds only what the model's own vocabulary has. */
            json_object_getn(vocab, tok->added[i].content.ptr, tok->added[i].content.len)
                ? 0
                : VOCAB_UNUSABLE};
    if (!st) st = tokenizer_set_vocab(tok, entries, n, options, err);
    if (st && st != STATUS_NOMEM) error_prefix(err, "tokenizer.json");
    free(entries);
    return st;
}

/* The halves of a merge: "a b", or ["a", "b"]. */
static bool merge_halves(const json_t *merge, struct slice *left, struct slice *right)
{
    struct slice text = string_slice(merge);
    const char *space;

    if (json_array_size(merge) == 2) {
        *left = string_slice(json_array_get(merge, 0));
        *right = string_slice(json_array_get(merge, 1));
        return left->ptr && right->ptr;
    }
    space = text.ptr ? memchr(text.ptr, ' ', text.len) : NULL;
    if (!space || memchr(space + 1, ' ', text.len - (size_t)(space + 1 - text.ptr))) return false;
    *left = slice_of(text.ptr, (size_t)(space - text.ptr));
    *right = slice_of(space + 1, text.len - left->len - 1);
    return true;
}

static enum status load_merges(struct tokenizer *tok, const json_t *merges, struct error *err)
{
    struct slice left, right;
    struct buf joined;
    const json_t *merge;
    enum status st = bpe_reserve_pairs(&tok->bpe, json_array_size(merges));
    size_t rank;

    if (st) return error_set(err, st, "no memory for the merges");
    buf_init(&joined, 0);
    json_array_foreach(merges, rank, merge)
    {
        if (!merge_halves(merge, &left, &right)) {
            st = error_set(err, STATUS_CORRUPT, "tokenizer.json: merge %zu is not a pair of tokens",
                           rank);
            break;
        }
        int32_t a = tokenizer_find_vocab(tok, left), b = tokenizer_find_vocab(tok, right);
        buf_clear(&joined);
        buf_append_slice(&joined, left);
        buf_append_slice(&joined, right);
        int32_t merged = tokenizer_find_vocab(tok, buf_slice(&joined));
        if (a == BPE_NONE || b == BPE_NONE || merged == BPE_NONE) {
            st = error_set(
                err, STATUS_CORRUPT,
                "tokenizer.json: merge %zu ('%.*s' + '%.*s') has a part or a result that is "
                "not in the vocab",
                rank, (int)(left.len < 64 ? left.len : 64), left.ptr,
                (int)(right.len < 64 ? right.len : 64), right.ptr);
            break;
        }
        bpe_add_pair(&tok->bpe, a, b, merged, (uint32_t)rank);
    }
    buf_fini(&joined);
    return st;
}

/* --- post_processor --- */

static enum status put_around(int32_t *ids, uint32_t *count, bool in_front, int32_t id,
                              struct error *err)
{
    if (*count == TOKENIZER_AROUND_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "tokenizer.json: the post_processor adds more than %d tokens",
                         TOKENIZER_AROUND_MAX);
    if (in_front) memmove(ids + 1, ids, *count * sizeof *ids);
    ids[in_front ? 0 : *count] = id;
    ++*count;
    return STATUS_OK;
}

static enum status add_special_id(struct tokenizer *tok, const json_t *value, bool before,
                                  struct error *err)
{
    int32_t id = BPE_NONE;
    enum status st = id_of(value, SLICE("a special token"), &id, err);

    if (st) return st;
    return before ? put_around(tok->before, &tok->before_count, true, id, err)
                  : put_around(tok->after, &tok->after_count, false, id, err);
}

/* The ids that one item of a template stands for, in front of the text from the last to the first.
 * */
static enum status add_special_item(struct tokenizer *tok, const json_t *item,
                                    const json_t *specials, bool before, struct error *err)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
    const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
    const size_t count = json_array_size(ids);
    enum status st = STATUS_OK;

    if (!count)
        return error_set(err, STATUS_CORRUPT,
                         "tokenizer.json: the post_processor's '%.64s' has no ids",
                         name ? name : "?");
    for (size_t i = 0; !st && i < count; i++)
        st = add_special_id(tok, json_array_get(ids, before ? count - 1 - i : i), before, err);
    return st;
}

static enum status load_template(struct tokenizer *tok, const json_t *part, struct error *err)
{
    const json_t *single = json_object_get(part, "single"),
                 *specials = json_object_get(part, "special_tokens");
    const size_t count = json_array_size(single);
    size_t text = 0;
    enum status st = STATUS_OK;

    while (text < count && !json_object_get(json_array_get(single, text), "Sequence"))
        text++;
    if (text == count)
        return error_set(err, STATUS_CORRUPT,
                         "tokenizer.json: the post_processor's template has no text");
    for (size_t i = text; !st && i > 0; i--)
        st = add_special_item(tok, json_array_get(single, i - 1), specials, true, err);
    for (size_t i = text + 1; !st && i < count; i++)
        st = add_special_item(tok, json_array_get(single, i), specials, false, err);
    return st;
}

static enum status load_post(struct tokenizer *tok, const json_t *part, unsigned depth,
                             struct error *err)
{
    const char *type = type_of(part);
    const json_t *list = json_object_get(part, "processors"), *item;
    enum status st = STATUS_OK;
    size_t i;

    if (!part || json_is_null(part) || strcmp(type, "ByteLevel") == 0) return STATUS_OK;
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(tok, part, err);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        st = add_special_id(tok, json_array_get(json_object_get(part, "cls"), 1), true, err);
        return st ? st
                  : add_special_id(tok, json_array_get(json_object_get(part, "sep"), 1), false,
                                   err);
    }
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth > 4)
        return unsupported(err, "post_processor", part);
    json_array_foreach(list, i, item)
    {
        if (!st) st = load_post(tok, item, depth + 1, err);
    }
    return st;
}

/* --- the config files --- */

/* A file that need not be there; NULL then. */
static enum status optional(struct weights *weights, const char *file, const json_t **out,
                            struct error *err)
{
    enum status st = weights_json(weights, file, out, err);

    if (st) *out = NULL;
    return st == STATUS_NOT_FOUND ? STATUS_OK : st;
}

/* "bos_token": a text or an object with its content. */
static int32_t named_token(const struct tokenizer *tok, const json_t *config, const json_t *map,
                           const char *name)
{
    const json_t *value = json_object_get(config, name);

    if (!value || json_is_null(value)) value = json_object_get(map, name);
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) ? tokenizer_find(tok, string_slice(value)) : BPE_NONE;
}

/* An id or a list of ids. What is no plausible id is passed over: -1 stands for none in some
 * configs. */
static void add_eos_of(struct tokenizer *tok, const json_t *config)
{
    const json_t *value = json_object_get(config, "eos_token_id");
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;

    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
        if (number >= 0 && number < TOKENIZER_IDS_MAX) tokenizer_add_eos(tok, (int32_t)number);
    }
}

static int32_t config_id(const struct tokenizer *tok, const json_t *config, const char *name)
{
    const json_t *value = json_object_get(config, name);
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;

    return id >= 0 && id < (json_int_t)tok->bytes->count ? (int32_t)id : BPE_NONE;
}

static bool contains(const int32_t *ids, uint32_t count, int32_t id)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

static enum status load_configs(struct tokenizer *tok, struct weights *weights, struct error *err)
{
    const json_t *config, *map, *model, *generation;
    enum status st = optional(weights, "tokenizer_config.json", &config, err);

    if (!st) st = optional(weights, "special_tokens_map.json", &map, err);
    if (!st) st = optional(weights, "config.json", &model, err);
    if (!st) st = optional(weights, "generation_config.json", &generation, err);
    if (st) return st;
    tok->bos = named_token(tok, config, map, "bos_token");
    tok->eos = named_token(tok, config, map, "eos_token");
    tok->pad = named_token(tok, config, map, "pad_token");
    if (tok->unk == BPE_NONE) tok->unk = named_token(tok, config, map, "unk_token");
    if (tok->bos == BPE_NONE && !config) tok->bos = config_id(tok, model, "bos_token_id");
    if (tok->eos == BPE_NONE && !config) tok->eos = config_id(tok, model, "eos_token_id");
    add_eos_of(tok, generation);
    add_eos_of(tok, model);
    /* Where the post-processor adds none, these two say it. */
    if (tok->bos != BPE_NONE && flag(config, "add_bos_token", false) &&
        !contains(tok->before, tok->before_count, tok->bos))
        st = put_around(tok->before, &tok->before_count, true, tok->bos, err);
    if (!st && tok->eos != BPE_NONE && flag(config, "add_eos_token", false) &&
        !contains(tok->after, tok->after_count, tok->eos))
        st = put_around(tok->after, &tok->after_count, false, tok->eos, err);
    return st;
}

static enum status check_around(const struct tokenizer *tok, struct error *err)
{
    for (uint32_t i = 0; i < tok->before_count + tok->after_count; i++) {
        int32_t id = i < tok->before_count ? tok->before[i] : tok->after[i - tok->before_count];
        if ((uint32_t)id >= tok->bytes->count)
            return error_set(err, STATUS_CORRUPT,
                             "tokenizer.json: the post_processor adds token %d of %u", id,
                             tok->bytes->count);
    }
    return STATUS_OK;
}

static enum status load_model(struct tokenizer *tok, const json_t *root, bool byte_level,
                              const struct decoder_plan *decoder, struct error *err)
{
    const json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    const json_t *unk = json_object_get(model, "unk_token");
    json_t *pieces = is_unigram(model) ? unigram_ids(vocab) : NULL;
    struct vocab_options options = {.form = byte_level       ? VOCAB_BYTE_LEVEL
                                            : decoder->marks ? VOCAB_SENTENCEPIECE
                                                             : VOCAB_PLAIN,
                                    .byte_tokens = decoder->byte_fallback};
    if (is_unigram(model) && !pieces)
        return error_set(err, STATUS_NOMEM, "no memory for the pieces");
    const json_t *ids = pieces ? pieces : vocab;
    enum status st = load_added(tok, json_object_get(root, "added_tokens"), ids, err);

    if (!st) st = load_vocab(tok, ids, options, err);
    if (!st && pieces)
        tok->unk = tok->bpe.unk = (int32_t)json_integer_value(json_object_get(model, "unk_id"));
    json_decref(pieces);
    if (!st && json_is_string(unk)) {
        tok->unk = tok->bpe.unk = tokenizer_find_vocab(tok, string_slice(unk));
        if (tok->unk == BPE_NONE)
            st =
                error_set(err, STATUS_CORRUPT, "tokenizer.json: the unk_token is not in the vocab");
    }
    tok->bpe.fuse_unk = flag(model, "fuse_unk", false);
    tok->bpe.byte_fallback = flag(model, "byte_fallback", false);
    tok->bpe.ignore_merges = flag(model, "ignore_merges", false);
    if (!st)
        st = is_unigram(model) ? load_scores(tok, vocab, err)
                               : load_merges(tok, json_object_get(model, "merges"), err);
    if (!st) st = tokenizer_index_added(tok, err);
    if (!st && !is_unigram(model)) spm_cut_at_spaces(tok);
    return st;
}

enum status tokenizer_load_json(struct tokenizer *tok, struct weights *weights, struct error *err)
{
    const json_t *root;
    struct decoder_plan decoder = {0};
    bool byte_level = false;
    enum status st = weights_json(weights, "tokenizer.json", &root, err);

    if (st == STATUS_NOT_FOUND)
        return error_set(err, st,
                         "%s has no tokenizer.json: the model's own belongs beside its config.json "
                         "(made-up weights, --load-format dummy, bring a tokenizer of bytes)",
                         weights_path(weights));
    if (!st) st = check_model(json_object_get(root, "model"), err);
    if (!st) st = load_normalizer(tok, json_object_get(root, "normalizer"), 0, err);
    if (!st) st = load_pretok(tok, json_object_get(root, "pre_tokenizer"), &byte_level, err);
    if (!st) st = plan_decoder(json_object_get(root, "decoder"), 0, &decoder, err);
    if (!st && byte_level && is_unigram(json_object_get(root, "model")))
        st = error_set(err, STATUS_UNSUPPORTED, "tokenizer.json: a Unigram model with ByteLevel");
    if (!st && byte_level != decoder.byte_level)
        st = error_set(
            err, STATUS_UNSUPPORTED,
            "tokenizer.json: pre_tokenizer and decoder must both be ByteLevel, or neither");
    if (!st) st = load_model(tok, root, byte_level, &decoder, err);
    tok->strip_first = decoder.strip;
    if (!st) st = load_post(tok, json_object_get(root, "post_processor"), 0, err);
    if (!st) st = load_configs(tok, weights, err);
    if (!st) st = check_around(tok, err);
    return st;
}
