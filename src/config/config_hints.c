/* config_hints.c - names of other servers' options, and what does the same here. */
#include <string.h>

#include "config/config_private.h"

static const struct {
    const char *name; /* with hyphens, without the leading ones */
    const char *hint;
} hints[] = {
    /* vLLM */
    {"tensor-parallel-size", "this build computes on one GPU"},
    {"tp", "this build computes on one GPU"},
    {"pipeline-parallel-size", "this build computes on one GPU"},
    {"data-parallel-size", "start one daemon per GPU, each with --device cuda:N"},
    {"tokenizer", "the tokenizer is the model's own"},
    {"tokenizer-mode", "the tokenizer is the model's own"},
    {"trust-remote-code", "no code of a model is ever run"},
    {"quantization", "a model's quantisation is read from its files"},
    {"kv-cache-dtype", "the KV cache has the device's own format"},
    {"swap-space", "there is no swap tier; --kv-cache-memory sizes the cache"},
    {"max-seq-len", "use --max-model-len"},
    {"max-num-sequences", "use --max-num-seqs"},
    {"enable-chunked-prefill",
     "prompts are always computed in chunks; --max-num-batched-tokens sizes them"},
    {"scheduling-policy", "use --class-age-ms"},
    {"disable-log-requests", "use --log-level warn"},
    {"disable-log-stats", "use --log-level warn"},
    {"uvicorn-log-level", "use --log-level"},
    {"root-path", "let the proxy take the prefix away"},
    {"allowed-origins", "use --cors or --no-cors"},
    {"response-role", "the role of an answer is always assistant"},
    {"limit-mm-per-prompt", "models read text only"},
    {"speculative-model", "this build does not speculate"},
    {"enable-lora", "this build serves no adapters"},
    {"download-dir", "set HF_HOME; models are read from the local hub cache"},
    {"revision", "give the snapshot's folder as MODEL"},
    {"enable-auto-tool-choice", "this build makes no tool calls"},
    /* llama-server */
    {"n-gpu-layers", "use --device cuda or --device cpu: a model is computed on one of them"},
    {"gpu-layers", "use --device cuda or --device cpu: a model is computed on one of them"},
    {"ngl", "use --device cuda or --device cpu: a model is computed on one of them"},
    {"ubatch-size", "use --max-num-batched-tokens"},
    {"ub", "use --max-num-batched-tokens"},
    {"n-predict", "requests say max_tokens; in `inferd run` use --max-tokens"},
    {"predict", "requests say max_tokens; in `inferd run` use --max-tokens"},
    {"cont-batching", "sequences are always batched continuously"},
    {"cb", "sequences are always batched continuously"},
    {"flash-attn", "attention is always fused"},
    {"fa", "attention is always fused"},
    {"mlock", "use LimitMEMLOCK= of the unit; weights are kept in memory"},
    {"no-mmap", "weights are packed from a mapping whose pages are then given back"},
    {"slots", "GET /admin/requests on --admin-socket shows what runs"},
    {"metrics", "/metrics is always there"},
    {"jinja", "chat templates are always rendered"},
    {"chat-template-file", "use --chat-template FILE"},
    {"hf-repo", "give the id as MODEL; it is looked for in the local hub cache"},
    {"hf", "give the id as MODEL; it is looked for in the local hub cache"},
    {"lora", "this build serves no adapters"},
    {"timeout", "use --client-stall-timeout-s, --header-timeout-s or --body-timeout-s"},
    {"verbose", "use --log-level debug"},
    {"log-verbosity", "use --log-level debug"},
};

const char *config_hint(const char *name)
{
    const char *bare = name + strspn(name, "-");

    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        size_t at = 0;

        while (bare[at] && (bare[at] == '_' ? '-' : bare[at]) == hints[i].name[at])
            at++;
        if (!bare[at] && !hints[i].name[at]) return hints[i].hint;
    }
    return NULL;
}
