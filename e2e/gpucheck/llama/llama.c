/*
 * llama.cpp at work, by its own libraries: llama DIRECTORY MODEL gpu|cpu.
 *
 * It loads the model, generates tokens, always the likeliest, and frees everything. It speaks as the
 * probes do (talk.h).
 */
#include <dlfcn.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../probe/talk.h"

enum { PROMPT = 32, TOKENS = 64, GPU = 1 /* a type of devices */ };

/*
 * llama.cpp's structs of parameters, which change with every release: all that is done with them here is to pass on the
 * defaults. On x86-64 a struct of this size is passed in memory, and the callee takes as much of it as it knows.
 */
struct parameters {
    uint64_t words[256];
};

struct batch {
    int32_t count;
    int32_t *tokens;
    void *rest[5];
};

static struct {
    void (*llama_backend_init)(void);
    void (*ggml_backend_load_all_from_path)(const char *directory);
    void *(*ggml_backend_dev_by_type)(int type);
    void (*ggml_backend_dev_memory)(void *device, size_t *free, size_t *total);
    struct parameters (*llama_model_default_params)(void);
    struct parameters (*llama_context_default_params)(void);
    void *(*llama_model_load_from_file)(const char *path, struct parameters parameters);
    void *(*llama_init_from_model)(void *model, struct parameters parameters);
    void (*llama_set_n_threads)(void *context, int32_t threads, int32_t batch_threads);
    const void *(*llama_model_get_vocab)(const void *model);
    int32_t (*llama_vocab_n_tokens)(const void *vocabulary);
    struct batch (*llama_batch_get_one)(int32_t *tokens, int32_t count);
    int32_t (*llama_decode)(void *context, struct batch batch);
    const float *(*llama_get_logits_ith)(void *context, int32_t i);
    void (*llama_free)(void *context);
    void (*llama_model_free)(void *model);
} llama;

/* Says why llama.cpp cannot be tried on this machine, and ends. */
static void impossible(const char *why, const char *remedy) {
    say("impossible", "\"why\":\"%s%s\"", why, remedy);
    exit(0);
}

static void open_library(const char *directory) {
    char pattern[4096];
    glob_t found;
    void *library;

    snprintf(pattern, sizeof pattern, "%s/libllama.*.so", directory);
    if (glob(pattern, 0, NULL, &found) != 0) {
        fprintf(stderr, "llama: there is no %s\n", pattern);
        exit(1);
    }
    library = dlopen(found.gl_pathv[0], RTLD_NOW);
    if (library == NULL)
        impossible(dlerror(), "");
#define FIND(name)                                                                                                     \
    do {                                                                                                               \
        *(void **)&llama.name = dlsym(library, #name);                                                                 \
        if (llama.name == NULL) {                                                                                      \
            fprintf(stderr, "llama: %s\n", dlerror());                                                                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
    FIND(llama_backend_init);
    FIND(ggml_backend_load_all_from_path);
    FIND(ggml_backend_dev_by_type);
    FIND(ggml_backend_dev_memory);
    FIND(llama_model_default_params);
    FIND(llama_context_default_params);
    FIND(llama_model_load_from_file);
    FIND(llama_init_from_model);
    FIND(llama_set_n_threads);
    FIND(llama_model_get_vocab);
    FIND(llama_vocab_n_tokens);
    FIND(llama_batch_get_one);
    FIND(llama_decode);
    FIND(llama_get_logits_ith);
    FIND(llama_free);
    FIND(llama_model_free);
    globfree(&found);
}

/* The GPU that llama.cpp finds. */
static void *find_gpu(const char *directory) {
    char file[4096];
    void *gpu;

    snprintf(file, sizeof file, "%s/libggml-cuda.so", directory);
    if (dlopen(file, RTLD_LAZY) == NULL)
        impossible(dlerror(),
                   "; CUDA's libraries come with PyTorch or CUDA's toolkit: name their directory in LD_LIBRARY_PATH");
    gpu = llama.ggml_backend_dev_by_type(GPU);
    if (gpu == NULL)
        impossible("llama.cpp finds no GPU that it may use", "");
    return gpu;
}

/* Decodes, and returns the likeliest next token; -1 if that failed. */
static int32_t next_token(void *context, int32_t *tokens, int32_t count, int32_t vocabulary) {
    int32_t best = 0;

    if (llama.llama_decode(context, llama.llama_batch_get_one(tokens, count)) != 0)
        return -1;
    const float *logits = llama.llama_get_logits_ith(context, -1);
    for (int32_t i = 1; i < vocabulary; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}

/* Generates tokens, writes them into `text`, and returns how many there were in a second; 0 if it failed. */
static double generate(void *context, int32_t vocabulary, char *text, size_t size) {
    int32_t prompt[PROMPT], token;
    struct timespec begun, ended;
    size_t length = 0;

    for (int32_t i = 0; i < PROMPT; i++)
        prompt[i] = i + 1;
    token = next_token(context, prompt, PROMPT, vocabulary);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (int i = 0; i < TOKENS && token >= 0; i++) {
        length += (size_t)snprintf(text + length, size - length, "%s%d", i > 0 ? " " : "", token);
        token = next_token(context, &token, 1, vocabulary);
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if (token < 0)
        return 0;
    return TOKENS / ((double)(ended.tv_sec - begun.tv_sec) + (double)(ended.tv_nsec - begun.tv_nsec) / 1e9);
}

int main(int argc, char **argv) {
    void *model, *context;
    size_t free_bytes = 0, total_bytes = 0;
    char text[TOKENS * 16] = "";
    double rate;

    if (argc != 4) {
        fprintf(stderr, "usage: llama DIRECTORY MODEL gpu|cpu\n");
        return 2;
    }
    open_library(argv[1]);
    llama.llama_backend_init();
    llama.ggml_backend_load_all_from_path(argv[1]);
    if (strcmp(argv[3], "gpu") == 0)
        llama.ggml_backend_dev_memory(find_gpu(argv[1]), &free_bytes, &total_bytes);
    step("begun", "\"free\":%zu,\"total\":%zu", free_bytes, total_bytes);
    model = llama.llama_model_load_from_file(argv[2], llama.llama_model_default_params());
    context = model == NULL ? NULL : llama.llama_init_from_model(model, llama.llama_context_default_params());
    step("loaded", "\"message\":\"%s\"", context == NULL ? "llama.cpp could not load the model" : "");
    if (context == NULL)
        return 0;
    /* Threads of llama.cpp's wait for each other without sleeping, which takes minutes where processors are scarce. */
    llama.llama_set_n_threads(context, 1, 1);
    rate = generate(context, llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model)), text, sizeof text);
    step("generated", "\"message\":\"%s\",\"title\":\"%s\",\"value\":%.1f",
         rate == 0 ? "llama.cpp could not generate tokens" : "", text, rate);
    llama.llama_free(context);
    llama.llama_model_free(model);
    step("freed", "\"message\":\"\"");
    return 0;
}
