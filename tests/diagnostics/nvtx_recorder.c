// What a tool loads into a process by NVTX_INJECTION64_PATH: it prints every range, indented by how deep it is.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CALLBACKS = 1, CORE = 1, RANGE_PUSH = 9, RANGE_POP = 11 };  // of nvtxDetail/nvtxTypes.h

typedef struct {
    size_t size;
    int (*module_functions)(int module, void*** *functions, unsigned int* count);
} Callbacks;

static _Thread_local int depth = 0;

static int push(const char* name) {
    fprintf(stderr, "NVTX %d %s\n", depth, name);
    return depth++;
}

static int pop(void) { return --depth; }

int InitializeInjectionNvtx2(const void* (*table_of)(uint32_t)) {
    const Callbacks* callbacks = table_of(CALLBACKS);
    void*** functions;
    unsigned int count;
    if (callbacks == NULL || !callbacks->module_functions(CORE, &functions, &count)) return 0;
    *functions[RANGE_PUSH] = (void*)push;
    *functions[RANGE_POP] = (void*)pop;
    return 1;
}
