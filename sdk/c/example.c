/* Publishes the events of an engine which stores two blocks, removes one, and moves the other one into a memory pool.
 * Arguments: the endpoint and the replay endpoint. It serves readers until a key is pressed. */
#include "penstock_kv.h"
#include <stdio.h>
#include <stdlib.h>

static void stop_on(const char *error) {
    if (error == NULL) return;
    fprintf(stderr, "%s\n", error);
    exit(1);
}

int main(int argc, char **argv) {
    penstock_kv_publisher *publisher;
    stop_on(penstock_kv_open(
        &(penstock_kv_options){
            .endpoint = argc > 1 ? argv[1] : "tcp://127.0.0.1:5557",
            .replay_endpoint = argc > 2 ? argv[2] : "tcp://127.0.0.1:5558",
            .block_size = 16,
        },
        &publisher));
    printf("events at %s, replay at %s\n", penstock_kv_endpoint(publisher), penstock_kv_replay_endpoint(publisher));

    uint32_t tokens[32];
    for (uint32_t i = 0; i < 32; i++) tokens[i] = i;
    penstock_kv_block blocks[] = {
        {.block_hash = 11, .token_ids = tokens, .token_count = 16},
        {.block_hash = 12,
         .token_ids = tokens + 16,
         .token_count = 16,
         .moe_metadata = &(penstock_kv_moe){.layer_id = 3, .expert_id = 17}},
    };
    stop_on(penstock_kv_publish_stored(publisher, 1, &(penstock_kv_stored){.blocks = blocks, .block_count = 2}));
    stop_on(penstock_kv_publish_removed(publisher, 2, &blocks[1].block_hash, 1, PENSTOCK_KV_GPU));
    stop_on(penstock_kv_publish_cxl_state_transition(
        publisher, 3, &blocks[0].block_hash, 1,
        &(penstock_kv_cxl){
            .state = PENSTOCK_KV_CXL_POOLED,
            .pool_id = &(uint32_t){5},
            .accessible_workers = (penstock_kv_worker[]){{.id = 1}, {.id = 2, .rank = 1}},
            .worker_count = 2,
        }));

    getchar();
    penstock_kv_close(publisher);
    return 0;
}
