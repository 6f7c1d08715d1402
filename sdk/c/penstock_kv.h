/* A publisher of the KV cache events of an engine to Penstock, over ZeroMQ. docs/sdk.md describes the use,
 * docs/format/engine-events.md the bytes.
 *
 * Functions which can fail return NULL, or a constant text in English which says what is wrong; the publisher is then
 * as before the call. All pointers in arguments are read during the call only. */
#ifndef PENSTOCK_KV_H
#define PENSTOCK_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The largest number of blocks or hashes in one call, of tokens in one call, of workers in an access list, of bytes in
 * a text, of bytes in a message, of pools in the life of a publisher, and of messages in a buffer. */
#define PENSTOCK_KV_MAX_BLOCKS 16384
#define PENSTOCK_KV_MAX_TOKENS (1u << 22)
#define PENSTOCK_KV_MAX_ACCESS 1024
#define PENSTOCK_KV_MAX_TEXT 1024
#define PENSTOCK_KV_MAX_MESSAGE (24u << 20)
#define PENSTOCK_KV_MAX_POOLS 256
#define PENSTOCK_KV_MAX_BUFFER (1u << 20)

typedef struct penstock_kv_publisher penstock_kv_publisher;

/* The options of a publisher. A field which is 0 or NULL has its default. */
typedef struct {
    const char *endpoint;        /* of the PUB socket; tcp://127.0.0.1:5557 */
    const char *replay_endpoint; /* of the ROUTER socket which repeats messages; NULL: a lost message is not repaired */
    const char *topic;           /* empty */
    uint32_t block_size;         /* tokens in a block; 16 */
    uint32_t buffer_batches;     /* messages which can be repeated; 10,000 */
    int queue;                   /* messages which wait for a slow reader before further ones are lost to it; 100,000 */
    const uint32_t *rank;        /* the data-parallel rank; not said */
} penstock_kv_options;

/* Where a block is stored. */
typedef enum { PENSTOCK_KV_GPU, PENSTOCK_KV_CPU, PENSTOCK_KV_DISK } penstock_kv_medium;

/* The state of a block in a memory pool; docs/format/blocks.md has the meaning. */
typedef enum {
    PENSTOCK_KV_LOCAL_GPU,
    PENSTOCK_KV_IN_TRANSIT,
    PENSTOCK_KV_CXL_POOLED,
    PENSTOCK_KV_EVICTED
} penstock_kv_state;

/* A worker of Penstock: its id, below 2^53, and its rank. */
typedef struct {
    uint64_t id;
    uint32_t rank;
} penstock_kv_worker;

/* The expert under which an engine reports a block. */
typedef struct {
    uint32_t layer_id;
    uint32_t expert_id;
    const uint32_t *expert_group; /* or NULL */
} penstock_kv_moe;

/* A state in a pool. Without pool_id or accessible_workers (NULL) the last transition of a block with one counts;
 * without any, every worker which attached the pool can attach the block. An empty list of a stored block says
 * nothing. */
typedef struct {
    penstock_kv_state state;
    const uint32_t *pool_id;
    const penstock_kv_worker *accessible_workers;
    size_t worker_count;
} penstock_kv_cxl;

/* A stored block: its hash, of the engine's choice, and as many tokens as the publisher's block_size. */
typedef struct {
    uint64_t block_hash;
    const uint32_t *token_ids;
    size_t token_count;
    const penstock_kv_moe *moe_metadata; /* or NULL */
    const penstock_kv_cxl *cxl_metadata; /* or NULL */
} penstock_kv_block;

/* Blocks which were stored one after another, after the block parent_hash, or at a prompt's start if that is NULL. */
typedef struct {
    const penstock_kv_block *blocks;
    size_t block_count;
    const uint64_t *parent_hash;
    const char *lora_name;  /* or NULL */
    const char *cache_salt; /* or NULL */
    penstock_kv_medium medium;
} penstock_kv_stored;

/* Binds the sockets and starts the thread which answers readers. Sets *publisher only if it succeeds. */
const char *penstock_kv_open(const penstock_kv_options *options, penstock_kv_publisher **publisher);

/* Sends the last messages, for at most a second, and frees the publisher. No other call may run or follow. NULL is
 * allowed. */
void penstock_kv_close(penstock_kv_publisher *publisher);

/* Return where the sockets are bound, with the port which was chosen for "*"; valid until the publisher is closed. The
 * replay endpoint is NULL without the option. */
const char *penstock_kv_endpoint(const penstock_kv_publisher *publisher);
const char *penstock_kv_replay_endpoint(const penstock_kv_publisher *publisher);

/* The calls below may be made from any thread, and do not wait for readers. event_id is the caller's own number, for
 * its logs; the publisher numbers its messages itself. */

/* Says that blocks were stored. */
const char *penstock_kv_publish_stored(penstock_kv_publisher *publisher, uint64_t event_id,
                                       const penstock_kv_stored *stored);

/* Says that one copy of each block was removed from a medium. */
const char *penstock_kv_publish_removed(penstock_kv_publisher *publisher, uint64_t event_id,
                                        const uint64_t *block_hashes, size_t hash_count, penstock_kv_medium medium);

/* Says that a medium has no blocks any more. Memory pools are not affected. */
const char *penstock_kv_publish_all_cleared(penstock_kv_publisher *publisher, uint64_t event_id,
                                            penstock_kv_medium medium);

/* Says that blocks changed their state in a memory pool; without hashes, all blocks of the pool. */
const char *penstock_kv_publish_cxl_state_transition(penstock_kv_publisher *publisher, uint64_t event_id,
                                                     const uint64_t *block_hashes, size_t hash_count,
                                                     const penstock_kv_cxl *transition);

#ifdef __cplusplus
}
#endif

#endif
