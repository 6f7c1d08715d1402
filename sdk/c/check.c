/* Checks of the publisher with sockets of libzmq: bytes, arguments, descriptions, threads, and failing allocations. The
 * checks against a router are in test/interop/zmtp/sdk. */
#include "penstock_kv.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define BLOCK_SIZE 4

static void fail_at(int line, const char *what) {
    fprintf(stderr, "check.c:%d: %s\n", line, what);
    exit(1);
}

#define require(condition) ((condition) ? (void)0 : fail_at(__LINE__, #condition))
#define require_ok(call) require_no_error(__LINE__, call)

static void require_no_error(int line, const char *error) {
    if (error != NULL) fail_at(line, error);
}

/* The allocations of the publisher which are left until one fails; negative: none fails. */
static atomic_long allocations_left = -1;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *data, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *data, size_t size);

static bool fails_now(void) {
    return atomic_load(&allocations_left) >= 0 && atomic_fetch_sub(&allocations_left, 1) == 0;
}

void *__wrap_malloc(size_t size) { return fails_now() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t n, size_t size) { return fails_now() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *data, size_t size) { return fails_now() ? NULL : __real_realloc(data, size); }

static penstock_kv_publisher *open_publisher(uint32_t buffer_batches) {
    penstock_kv_publisher *p = NULL;
    require_ok(penstock_kv_open(&(penstock_kv_options){.endpoint = "tcp://127.0.0.1:*",
                                                       .replay_endpoint = "tcp://127.0.0.1:*",
                                                       .block_size = BLOCK_SIZE,
                                                       .buffer_batches = buffer_batches},
                                &p));
    return p;
}

static const uint32_t tokens[] = {1, 200, 70000, 4};

static const char *store(penstock_kv_publisher *p, uint64_t hash, const uint64_t *parent) {
    penstock_kv_moe label = {3, 17, &(uint32_t){2}};
    penstock_kv_cxl state = {.state = PENSTOCK_KV_LOCAL_GPU};
    penstock_kv_block block = {hash, tokens, BLOCK_SIZE, &label, &state};
    return penstock_kv_publish_stored(p, 0, &(penstock_kv_stored){&block, 1, parent, "a", "salt", PENSTOCK_KV_GPU});
}

static const char *move_two(penstock_kv_publisher *p, penstock_kv_state state) {
    uint64_t hashes[] = {11, 12};
    penstock_kv_worker workers[] = {{8, 0}, {9, 1}};
    return penstock_kv_publish_cxl_state_transition(p, 0, hashes, 2,
                                                    &(penstock_kv_cxl){state, &(uint32_t){5}, workers, 2});
}

/* A batch of an answer. */
struct reply {
    uint64_t number;
    size_t size;
    unsigned char bytes[4096];
};

/* Asks for all batches from a number on, and returns how many came. */
static size_t ask(const penstock_kv_publisher *p, uint64_t first, struct reply *replies, size_t limit) {
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    int linger = 0, timeout = 60000;
    require(zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger) == 0);
    require(zmq_setsockopt(dealer, ZMQ_RCVTIMEO, &timeout, sizeof timeout) == 0);
    require(zmq_connect(dealer, penstock_kv_replay_endpoint(p)) == 0);
    unsigned char number[8];
    for (int i = 8; i-- > 0; first >>= 8) number[i] = (unsigned char)first;
    require(zmq_send(dealer, "", 0, ZMQ_SNDMORE) == 0);
    require(zmq_send(dealer, number, 8, 0) == 8);
    size_t n = 0;
    for (;; n++) {
        struct reply unused, *r = n < limit ? &replies[n] : &unused;
        require(zmq_recv(dealer, number, 8, 0) == 0);
        require(zmq_recv(dealer, number, 8, 0) == 8);
        int size = zmq_recv(dealer, r->bytes, sizeof r->bytes, 0);
        require(size >= 0 && (size_t)size <= sizeof r->bytes);
        r->size = (size_t)size;
        r->number = 0;
        for (int i = 0; i < 8; i++) r->number = r->number << 8 | number[i];
        if (r->number == UINT64_MAX) break;
        require(n < limit);
    }
    zmq_close(dealer);
    zmq_ctx_term(context);
    return n;
}

/* The example of docs/format/engine-events.md. */
static const unsigned char transition_example[] =
    "\x85\xa4type\xb2"
    "CxlStateTransition\xac"
    "block_hashes\x92\x0b\x0c\xa9new_state\xaain_transit\xa7pool_id\x05\xb2"
    "accessible_workers\x92\x08\x92\x09\x01";

/* What Python's msgpack writes for the event of sdk/python with the same arguments. */
static const unsigned char stored_example[] =
    "\x8a\xa4type\xab"
    "BlockStored\xac"
    "block_hashes\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xb1parent_block_hash\x0b\xa9token_ids\x94\x01\xcc\xc8\xce\x00"
    "\x01\x11\x70\x04\xaa"
    "block_size\x04\xa9lora_name\xa1"
    "a\xa6medium\xa3GPU\xaa"
    "cache_salt\xa4salt\xacmoe_metadata\x91\x83\xa8layer_id\x03\xa9"
    "expert_id\x11\xac"
    "expert_group\x02\xac"
    "cxl_metadata\x91\x81\xa5state\xa9local_gpu";

/* Requires that a batch is [time, [event], nil]. */
static void require_event(const struct reply *r, const unsigned char *event, size_t n) {
    require(r->size == 1 + 9 + 1 + n + 1);
    require(r->bytes[0] == 0x93 && r->bytes[1] == 0xcb && r->bytes[10] == 0x91 && r->bytes[r->size - 1] == 0xc0);
    require(memcmp(r->bytes + 11, event, n) == 0);
}

static void check_bytes(void) {
    penstock_kv_publisher *p = open_publisher(10);
    require_ok(move_two(p, PENSTOCK_KV_IN_TRANSIT));
    require_ok(store(p, UINT64_MAX, &(uint64_t){11}));
    struct reply replies[2];
    require(ask(p, 0, replies, 2) == 2);
    require_event(&replies[0], transition_example, sizeof transition_example - 1);
    require_event(&replies[1], stored_example, sizeof stored_example - 1);
    penstock_kv_close(p);
}

static void check_arguments(void) {
    penstock_kv_publisher *p = open_publisher(10), *other = NULL;
    uint64_t hash = 1;
    penstock_kv_block short_block = {.block_hash = 1, .token_ids = tokens, .token_count = BLOCK_SIZE - 1};
    penstock_kv_worker far_worker = {UINT64_C(1) << 53, 0};
    static char long_text[PENSTOCK_KV_MAX_TEXT + 2];
    memset(long_text, 'x', sizeof long_text - 1);
    penstock_kv_block block = {.block_hash = 1, .token_ids = tokens, .token_count = BLOCK_SIZE};
    require(penstock_kv_open(&(penstock_kv_options){.endpoint = "nowhere"}, &other) != NULL && other == NULL);
    require(penstock_kv_open(&(penstock_kv_options){.endpoint = penstock_kv_endpoint(p)}, &other) != NULL);
    require(penstock_kv_open(&(penstock_kv_options){.queue = -1}, &other) != NULL);
    require(penstock_kv_publish_stored(p, 0, &(penstock_kv_stored){.blocks = &short_block, .block_count = 1}) != NULL);
    require(penstock_kv_publish_stored(p, 0, &(penstock_kv_stored){.block_count = 0}) != NULL);
    require(penstock_kv_publish_stored(
                p, 0, &(penstock_kv_stored){.blocks = &block, .block_count = 1, .lora_name = long_text}) != NULL);
    require(penstock_kv_publish_removed(p, 0, NULL, 1, PENSTOCK_KV_GPU) != NULL);
    require(penstock_kv_publish_removed(p, 0, &hash, PENSTOCK_KV_MAX_BLOCKS + 1, PENSTOCK_KV_GPU) != NULL);
    require(penstock_kv_publish_all_cleared(p, 0, (penstock_kv_medium)3) != NULL);
    require(move_two(p, (penstock_kv_state)4) != NULL);
    require(penstock_kv_publish_cxl_state_transition(
                p, 0, &hash, 1, &(penstock_kv_cxl){.accessible_workers = &far_worker, .worker_count = 1}) != NULL);
    for (uint32_t pool = 0; pool <= PENSTOCK_KV_MAX_POOLS; pool++) {
        penstock_kv_cxl into = {.state = PENSTOCK_KV_CXL_POOLED, .pool_id = &pool};
        const char *error = penstock_kv_publish_cxl_state_transition(p, 0, &hash, 1, &into);
        require((error != NULL) == (pool == PENSTOCK_KV_MAX_POOLS));
    }
    penstock_kv_close(p);
}

/* Publishes events of every kind, which fill a buffer of two several times. The state of the base is at the end: block
 * 11 with two copies, block 12 in pool 5 without a copy, block 13 gone. Stops at the first error. */
static const char *publish_all(penstock_kv_publisher *p) {
    const uint64_t first = 11, second = 12, third = 13;
    const char *error = store(p, first, NULL);
    if (error == NULL) error = store(p, second, &first);
    if (error == NULL) error = store(p, third, &second);
    if (error == NULL) error = store(p, first, NULL);
    if (error == NULL) error = move_two(p, PENSTOCK_KV_IN_TRANSIT);
    if (error == NULL)
        error = penstock_kv_publish_cxl_state_transition(p, 0, &first, 1,
                                                         &(penstock_kv_cxl){.state = PENSTOCK_KV_EVICTED});
    if (error == NULL)
        error = penstock_kv_publish_cxl_state_transition(p, 0, &second, 1,
                                                         &(penstock_kv_cxl){.state = PENSTOCK_KV_CXL_POOLED});
    if (error == NULL) error = penstock_kv_publish_removed(p, 0, (uint64_t[]){13, 12}, 2, PENSTOCK_KV_GPU);
    if (error == NULL) error = penstock_kv_publish_all_cleared(p, 0, PENSTOCK_KV_CPU);
    if (error == NULL) error = penstock_kv_publish_all_cleared(p, 0, PENSTOCK_KV_DISK);
    return error;
}

static size_t count_word(const struct reply *r, const char *word) {
    size_t n = strlen(word), found = 0;
    for (size_t i = 0; i + n <= r->size; i++) found += memcmp(r->bytes + i, word, n) == 0;
    return found;
}

static void check_description(void) {
    penstock_kv_publisher *p = open_publisher(2);
    require_ok(publish_all(p));
    struct reply replies[4];
    require(ask(p, 0, replies, 4) == 3);
    for (uint64_t i = 0; i < 3; i++) require(replies[i].number == 7 + i);
    /* Three cleared media, pool 5, block 11, its other copy with block 12, the transition of 12, its removal. */
    require(replies[0].bytes[10] == 0x98);
    require(count_word(&replies[0], "AllBlocksCleared") == 3);
    require(count_word(&replies[0], "BlockStored") == 2);
    require(count_word(&replies[0], "block_hashes\x92\x0b\x0c\xb1") == 1);
    require(count_word(&replies[0], "block_hashes\x91\x0c\xa9new_state\xaa" "cxl_pooled\xa7pool_id\x05\xb2"
                                    "accessible_workers\x92\x08\x92\x09\x01") == 1);
    require(count_word(&replies[0], "BlockRemoved\xac" "block_hashes\x91\x0c\xa6medium\xa3GPU") == 1);
    require(count_word(&replies[0], "moe_metadata\x92\x83") == 1);
    require(ask(p, 7, replies, 4) == 3); /* the batch before the buffer is still known */
    require(count_word(&replies[0], "BlockRemoved") == 1 && replies[0].bytes[10] == 0x91);
    require(ask(p, 10, replies, 4) == 0);
    penstock_kv_close(p);
}

static void *publish_many(void *argument) {
    for (uint64_t i = 0; i < 5000; i++) require_ok(store(argument, i, NULL));
    return NULL;
}

static void check_threads(void) {
    penstock_kv_publisher *p = open_publisher(100);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) require(pthread_create(&threads[i], NULL, publish_many, p) == 0);
    for (int i = 0; i < 4; i++) require(pthread_join(threads[i], NULL) == 0);
    static struct reply replies[101];
    require(ask(p, 19899, replies, 101) == 101);
    for (uint64_t i = 0; i < 101; i++) require(replies[i].number == 19899 + i);
    penstock_kv_close(p);
}

/* Makes each allocation fail in turn: the call must say so, and later ones must succeed. */
static void check_memory(void) {
    for (long n = 0;; n++) {
        penstock_kv_publisher *p = NULL;
        atomic_store(&allocations_left, n);
        const char *error = penstock_kv_open(
            &(penstock_kv_options){.endpoint = "tcp://127.0.0.1:*", .block_size = BLOCK_SIZE, .buffer_batches = 2}, &p);
        require((error != NULL) == (p == NULL));
        if (error == NULL) error = publish_all(p);
        bool reached = atomic_exchange(&allocations_left, -1) < 0;
        require((error != NULL) == reached);
        if (p != NULL) require_ok(publish_all(p));
        penstock_kv_close(p);
        if (!reached) {
            require(n > 30);
            break;
        }
    }
    /* Without memory for an answer the reader gets none, and asks again. */
    penstock_kv_publisher *p = open_publisher(2);
    require_ok(publish_all(p));
    void *context = zmq_ctx_new();
    long failures = 0;
    for (bool reached = true; reached; failures++) {
        void *dealer = zmq_socket(context, ZMQ_DEALER);
        int linger = 0;
        require(zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger) == 0);
        require(zmq_connect(dealer, penstock_kv_replay_endpoint(p)) == 0);
        atomic_store(&allocations_left, failures);
        require(zmq_send(dealer, "", 0, ZMQ_SNDMORE) == 0 && zmq_send(dealer, "\0\0\0\0\0\0\0\0", 8, 0) == 8);
        zmq_pollitem_t item = {.socket = dealer, .events = ZMQ_POLLIN};
        int answered = 0;
        do answered = zmq_poll(&item, 1, 10); /* until there is an answer, or the allocation has failed */
        while (answered == 0 && atomic_load(&allocations_left) >= 0);
        reached = atomic_exchange(&allocations_left, -1) < 0;
        zmq_close(dealer);
    }
    require(failures > 10);
    zmq_ctx_term(context);
    struct reply replies[3];
    require(ask(p, 0, replies, 3) == 3);
    penstock_kv_close(p);
}

int main(void) {
    check_bytes();
    check_arguments();
    check_description();
    check_threads();
    check_memory();
    puts("all checks passed");
    return 0;
}
