/* Publishes what the lines on standard input say, with the publisher of sdk/c. publisher_test.go describes arguments
 * and lines; every line is answered. */
#include <penstock_kv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NUMBERS 8192

static void stop_on(const char *error) {
    if (error == NULL) return;
    fprintf(stderr, "publisher: %s\n", error);
    exit(1);
}

/* Publishes blocks of a hash and block_size tokens each, all with one label. */
static const char *store(penstock_kv_publisher *p, uint64_t event_id, const uint64_t *numbers, size_t n,
                         size_t block_size) {
    static penstock_kv_block blocks[MAX_NUMBERS];
    static uint32_t tokens[MAX_NUMBERS];
    if (n < 2 || (n - 2) % (1 + block_size) != 0) return "stored needs a layer, an expert, and blocks";
    penstock_kv_moe label = {.layer_id = (uint32_t)numbers[0], .expert_id = (uint32_t)numbers[1]};
    penstock_kv_cxl local = {.state = PENSTOCK_KV_LOCAL_GPU};
    size_t count = 0;
    for (size_t at = 2; at < n; at += 1 + block_size, count++) {
        for (size_t i = 0; i < block_size; i++) tokens[count * block_size + i] = (uint32_t)numbers[at + 1 + i];
        blocks[count] = (penstock_kv_block){numbers[at], tokens + count * block_size, block_size, &label, &local};
    }
    return penstock_kv_publish_stored(p, event_id, &(penstock_kv_stored){.blocks = blocks, .block_count = count});
}

/* Publishes that blocks go into a pool, for two workers, and then that they are in it. */
static const char *pool(penstock_kv_publisher *p, uint64_t event_id, const uint64_t *numbers, size_t n) {
    if (n < 3) return "pooled needs a pool and two workers";
    uint32_t pool_id = (uint32_t)numbers[0];
    penstock_kv_worker workers[] = {{.id = numbers[1]}, {.id = numbers[2]}};
    penstock_kv_cxl in_transit = {PENSTOCK_KV_IN_TRANSIT, &pool_id, workers, 2};
    penstock_kv_cxl pooled = {.state = PENSTOCK_KV_CXL_POOLED};
    const char *error = penstock_kv_publish_cxl_state_transition(p, event_id, numbers + 3, n - 3, &in_transit);
    return error != NULL ? error : penstock_kv_publish_cxl_state_transition(p, event_id, numbers + 3, n - 3, &pooled);
}

int main(int argc, char **argv) {
    if (argc != 6) stop_on("usage: publisher ENDPOINT REPLAY BLOCK_SIZE BUFFER QUEUE");
    penstock_kv_options options = {
        .endpoint = argv[1],
        .replay_endpoint = argv[2],
        .block_size = (uint32_t)strtoul(argv[3], NULL, 10),
        .buffer_batches = (uint32_t)strtoul(argv[4], NULL, 10),
        .queue = atoi(argv[5]),
    };
    penstock_kv_publisher *p;
    stop_on(penstock_kv_open(&options, &p));
    printf("%s %s\n", penstock_kv_endpoint(p), penstock_kv_replay_endpoint(p));
    fflush(stdout);

    static char line[1 << 17];
    static uint64_t numbers[MAX_NUMBERS];
    for (uint64_t event_id = 0; fgets(line, sizeof line, stdin) != NULL; event_id++) {
        size_t n = 0;
        const char *method = strtok(line, " \n"), *word;
        while ((word = strtok(NULL, " \n")) != NULL && n < MAX_NUMBERS) numbers[n++] = strtoull(word, NULL, 10);
        if (method == NULL) stop_on("the line is empty");
        else if (strcmp(method, "stored") == 0) stop_on(store(p, event_id, numbers, n, options.block_size));
        else if (strcmp(method, "removed") == 0)
            stop_on(penstock_kv_publish_removed(p, event_id, numbers, n, PENSTOCK_KV_GPU));
        else if (strcmp(method, "cleared") == 0) stop_on(penstock_kv_publish_all_cleared(p, event_id, PENSTOCK_KV_GPU));
        else if (strcmp(method, "pooled") == 0) stop_on(pool(p, event_id, numbers, n));
        else if (strcmp(method, "evicted") == 0)
            stop_on(penstock_kv_publish_cxl_state_transition(p, event_id, numbers, n,
                                                             &(penstock_kv_cxl){.state = PENSTOCK_KV_EVICTED}));
        else stop_on("the method is unknown");
        puts("done");
        fflush(stdout);
    }
    penstock_kv_close(p);
    return 0;
}
