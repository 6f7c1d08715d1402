/* One publisher has one lock, which guards all of it but the endpoints and options. Whatever a later step needs is
 * allocated before a message is sent: a batch carries the blocks which the mirror takes over when the buffer drops the
 * batch, so applying a batch cannot fail. */
#define _POSIX_C_SOURCE 200809L

#include "penstock_kv.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#define MEDIA 3
#define STATES 4
#define MAX_WORKER ((UINT64_C(1) << 53) - 1)
#define NUMBER_BYTES 8
#define ENDPOINT_BYTES 256
#define POLL_MS 100

/* The largest number of blocks and tokens in one event of a description. */
#define RUN_BLOCKS 1024
#define RUN_TOKENS (1u << 20)

/* The largest batch of a description, below the limits of a reader (engine-events.md, Batch). Each is at least twice
 * what a call can publish, so that a description has at most as many batches as the ones which it sums up. */
#define CHUNK_EVENTS 65536
#define CHUNK_BLOCKS (1u << 19)
#define CHUNK_TOKENS (1u << 23)
#define CHUNK_BYTES (48u << 20)

static const char *const medium_names[MEDIA] = {"GPU", "CPU", "DISK"};
static const char *const state_names[STATES] = {"local_gpu", "in_transit", "cxl_pooled", "evicted"};
static const char no_memory[] = "there is no memory";

/* An access list, shared by the blocks which have it. */
struct access {
    size_t refs, count;
    penstock_kv_worker workers[];
};

/* The adapter and salt of blocks, shared by them. A text is absent if its length is negative. */
struct place {
    size_t refs;
    int lora_length, salt_length;
    char text[]; /* the adapter's name, then the salt */
};

/* A state in a pool, as a transition says it. */
struct move {
    penstock_kv_state state;
    bool has_pool;
    uint32_t pool;
    struct access *access;
};

/* A block of a batch, and later of the mirror. */
struct block {
    uint64_t hash, parent;
    bool has_parent, has_label, has_group, has_reported, is_pooled;
    uint32_t layer, expert, group;
    struct move reported; /* the state with which the block was stored */
    struct move pooled;   /* the state in a pool, in the mirror */
    struct place *place;
    uint32_t copies[MEDIA];
    struct block *chain;                     /* the next one in a bucket of the mirror */
    struct block *older, *newer;             /* in the order in which the mirror learnt of blocks */
    struct block *above, *first, *last;      /* the block before, and the blocks after this one */
    struct block *left, *right;              /* other blocks after the block before */
    uint32_t tokens[];
};

/* The state of a cache: what the events which were applied to it sum up to. A block is remembered while it has a copy,
 * is in a pool, or comes before a remembered block: a reader must know the blocks before a block to identify it. */
struct mirror {
    struct block **buckets;
    size_t bucket_count; /* a power of two */
    size_t count;
    struct block *oldest, *newest;
    struct block *cursor; /* the next block of a walk over all; moves on if that block is dropped */
};

enum kind { STORED, REMOVED, CLEARED, MOVED };

/* A published message, with the event which it says. */
struct batch {
    enum kind kind;
    bool has_payload;
    uint64_t number;
    zmq_msg_t payload;
    penstock_kv_medium medium;
    size_t count;
    struct block **blocks; /* of STORED */
    uint64_t *hashes;      /* of REMOVED and MOVED */
    struct move move;      /* of MOVED */
};

struct penstock_kv_publisher {
    char endpoint[ENDPOINT_BYTES], replay_endpoint[ENDPOINT_BYTES];
    bool has_replay, has_rank;
    uint32_t block_size, rank;
    void *context, *pub, *router;
    pthread_t thread;
    pthread_mutex_t lock;
    bool closed;
    uint64_t next;
    struct batch **buffer; /* a ring */
    size_t limit, head, buffered;
    struct batch *dropped; /* the batch before the buffer */
    struct mirror base;    /* the state after the batches which are not in the buffer any more */
    bool media_used[MEDIA];
    uint32_t pools[PENSTOCK_KV_MAX_POOLS];
    size_t pool_count;
    int64_t repeat_at, pause; /* ms of the monotonic clock: when the last batch is sent again */
    size_t topic_length;
    char topic[];
};

/* ---- MessagePack, as far as events need it ---- */

struct writer {
    unsigned char *data;
    size_t size, capacity, limit;
    bool failed, too_long;
};

static void write_bytes(struct writer *w, const void *bytes, size_t n) {
    if (w->failed || n == 0) return;
    if (n > w->limit - w->size) {
        w->failed = w->too_long = true;
        return;
    }
    if (n > w->capacity - w->size) {
        size_t capacity = w->capacity < 256 ? 256 : w->capacity;
        while (capacity - w->size < n) {
            if (capacity > SIZE_MAX / 2) {
                w->failed = true;
                return;
            }
            capacity *= 2;
        }
        unsigned char *data = realloc(w->data, capacity);
        if (data == NULL) {
            w->failed = true;
            return;
        }
        w->data = data;
        w->capacity = capacity;
    }
    memcpy(w->data + w->size, bytes, n);
    w->size += n;
}

static void put_big_endian(unsigned char *to, uint64_t value, int width) {
    for (int i = width; i-- > 0; value >>= 8) to[i] = (unsigned char)value;
}

static void write_tagged(struct writer *w, unsigned char tag, uint64_t value, int width) {
    unsigned char bytes[9] = {tag};
    put_big_endian(bytes + 1, value, width);
    write_bytes(w, bytes, 1 + (size_t)width);
}

static void write_byte(struct writer *w, unsigned char byte) { write_bytes(w, &byte, 1); }

static void write_nil(struct writer *w) { write_byte(w, 0xc0); }

static void write_uint(struct writer *w, uint64_t value) {
    if (value < 0x80) write_byte(w, (unsigned char)value);
    else if (value <= UINT8_MAX) write_tagged(w, 0xcc, value, 1);
    else if (value <= UINT16_MAX) write_tagged(w, 0xcd, value, 2);
    else if (value <= UINT32_MAX) write_tagged(w, 0xce, value, 4);
    else write_tagged(w, 0xcf, value, 8);
}

static void write_double(struct writer *w, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    write_tagged(w, 0xcb, bits, 8);
}

static void write_array(struct writer *w, size_t n) {
    if (n < 16) write_byte(w, (unsigned char)(0x90 | n));
    else if (n <= UINT16_MAX) write_tagged(w, 0xdc, n, 2);
    else write_tagged(w, 0xdd, n, 4);
}

/* Maps have at most 15 fields. */
static void write_map(struct writer *w, size_t n) { write_byte(w, (unsigned char)(0x80 | n)); }

/* Texts have at most PENSTOCK_KV_MAX_TEXT bytes. */
static void write_text(struct writer *w, const char *text, size_t n) {
    if (n < 32) write_byte(w, (unsigned char)(0xa0 | n));
    else if (n <= UINT8_MAX) write_tagged(w, 0xd9, n, 1);
    else write_tagged(w, 0xda, n, 2);
    write_bytes(w, text, n);
}

static void write_word(struct writer *w, const char *text) { write_text(w, text, strlen(text)); }

static void write_optional_text(struct writer *w, const char *text, int n) {
    if (n < 0) write_nil(w);
    else write_text(w, text, (size_t)n);
}

/* ---- Events ---- */

static void write_hashes(struct writer *w, const uint64_t *hashes, size_t n) {
    write_word(w, "block_hashes");
    write_array(w, n);
    for (size_t i = 0; i < n; i++) write_uint(w, hashes[i]);
}

static size_t count_move_fields(const struct move *move) {
    return 1 + (size_t)move->has_pool + (size_t)(move->access != NULL);
}

static void write_move_fields(struct writer *w, const char *state_key, const struct move *move) {
    write_word(w, state_key);
    write_word(w, state_names[move->state]);
    if (move->has_pool) {
        write_word(w, "pool_id");
        write_uint(w, move->pool);
    }
    if (move->access == NULL) return;
    write_word(w, "accessible_workers");
    write_array(w, move->access->count);
    for (size_t i = 0; i < move->access->count; i++) {
        const penstock_kv_worker *worker = &move->access->workers[i];
        if (worker->rank != 0) write_array(w, 2);
        write_uint(w, worker->id);
        if (worker->rank != 0) write_uint(w, worker->rank);
    }
}

static void write_moved(struct writer *w, const uint64_t *hashes, size_t n, const struct move *move) {
    write_map(w, 2 + count_move_fields(move));
    write_word(w, "type");
    write_word(w, "CxlStateTransition");
    write_hashes(w, hashes, n);
    write_move_fields(w, "new_state", move);
}

static void write_removed(struct writer *w, const uint64_t *hashes, size_t n, penstock_kv_medium medium) {
    write_map(w, 3);
    write_word(w, "type");
    write_word(w, "BlockRemoved");
    write_hashes(w, hashes, n);
    write_word(w, "medium");
    write_word(w, medium_names[medium]);
}

static void write_cleared(struct writer *w, penstock_kv_medium medium) {
    write_map(w, medium == PENSTOCK_KV_GPU ? 1 : 2);
    write_word(w, "type");
    write_word(w, "AllBlocksCleared");
    if (medium == PENSTOCK_KV_GPU) return;
    write_word(w, "medium");
    write_word(w, medium_names[medium]);
}

static void write_label(struct writer *w, const struct block *b) {
    if (!b->has_label) {
        write_nil(w);
        return;
    }
    write_map(w, b->has_group ? 3 : 2);
    write_word(w, "layer_id");
    write_uint(w, b->layer);
    write_word(w, "expert_id");
    write_uint(w, b->expert);
    if (!b->has_group) return;
    write_word(w, "expert_group");
    write_uint(w, b->group);
}

static void write_reported(struct writer *w, const struct block *b) {
    if (!b->has_reported) {
        write_nil(w);
        return;
    }
    write_map(w, count_move_fields(&b->reported));
    write_move_fields(w, "state", &b->reported);
}

/* Writes the stored event of blocks which follow one another. The states with which they were stored are written only
 * where the event is published first: a description has transitions for them. */
static void write_stored(struct writer *w, struct block *const *blocks, size_t n, uint32_t block_size,
                         penstock_kv_medium medium, bool with_states) {
    const struct place *place = blocks[0]->place;
    bool labels = false, states = false;
    for (size_t i = 0; i < n; i++) {
        labels = labels || blocks[i]->has_label;
        states = states || (with_states && blocks[i]->has_reported);
    }
    write_map(w, 7 + (size_t)(place->salt_length >= 0) + (size_t)labels + (size_t)states);
    write_word(w, "type");
    write_word(w, "BlockStored");
    write_word(w, "block_hashes");
    write_array(w, n);
    for (size_t i = 0; i < n; i++) write_uint(w, blocks[i]->hash);
    write_word(w, "parent_block_hash");
    if (blocks[0]->has_parent) write_uint(w, blocks[0]->parent);
    else write_nil(w);
    write_word(w, "token_ids");
    write_array(w, n * block_size);
    for (size_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < block_size; j++) write_uint(w, blocks[i]->tokens[j]);
    write_word(w, "block_size");
    write_uint(w, block_size);
    write_word(w, "lora_name");
    write_optional_text(w, place->text, place->lora_length);
    write_word(w, "medium");
    write_word(w, medium_names[medium]);
    if (place->salt_length >= 0) {
        write_word(w, "cache_salt");
        write_text(w, place->text + (place->lora_length > 0 ? place->lora_length : 0), (size_t)place->salt_length);
    }
    if (labels) {
        write_word(w, "moe_metadata");
        write_array(w, n);
        for (size_t i = 0; i < n; i++) write_label(w, blocks[i]);
    }
    if (states) {
        write_word(w, "cxl_metadata");
        write_array(w, n);
        for (size_t i = 0; i < n; i++) write_reported(w, blocks[i]);
    }
}

/* Writes what is before the events of a batch, and after them. */
static void write_batch_start(struct writer *w, size_t events) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    write_array(w, 3);
    write_double(w, (double)now.tv_sec + (double)now.tv_nsec / 1e9);
    write_array(w, events);
}

static void write_batch_end(struct writer *w, const penstock_kv_publisher *p) {
    if (p->has_rank) write_uint(w, p->rank);
    else write_nil(w);
}

static void free_payload(void *data, void *hint) {
    (void)hint;
    free(data);
}

/* Gives the bytes of a writer to a batch, or frees them. */
static const char *take_payload(struct writer *w, struct batch *batch) {
    if (!w->failed && zmq_msg_init_data(&batch->payload, w->data, w->size, free_payload, NULL) == 0) {
        batch->has_payload = true;
        return NULL;
    }
    free(w->data);
    return w->too_long ? "the message is longer than PENSTOCK_KV_MAX_MESSAGE: publish fewer blocks at once" : no_memory;
}

/* ---- Parts which blocks share ---- */

static void release_access(struct access *access) {
    if (access != NULL && --access->refs == 0) free(access);
}

static void release_place(struct place *place) {
    if (place != NULL && --place->refs == 0) free(place);
}

static void free_block(struct block *b) {
    if (b == NULL) return;
    release_access(b->reported.access);
    release_access(b->pooled.access);
    release_place(b->place);
    free(b);
}

static void free_batch(struct batch *batch) {
    if (batch == NULL) return;
    for (size_t i = 0; batch->blocks != NULL && i < batch->count; i++) free_block(batch->blocks[i]);
    free(batch->blocks);
    free(batch->hashes);
    release_access(batch->move.access);
    if (batch->has_payload) zmq_msg_close(&batch->payload);
    free(batch);
}

static bool same_access(const struct access *a, const struct access *b) {
    if (a == b) return true;
    if (a == NULL || b == NULL || a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (a->workers[i].id != b->workers[i].id || a->workers[i].rank != b->workers[i].rank) return false;
    return true;
}

static bool same_place(const struct place *a, const struct place *b) {
    if (a == b) return true;
    if (a->lora_length != b->lora_length || a->salt_length != b->salt_length) return false;
    size_t n = (size_t)(a->lora_length > 0 ? a->lora_length : 0) + (size_t)(a->salt_length > 0 ? a->salt_length : 0);
    return memcmp(a->text, b->text, n) == 0;
}

/* ---- The mirror ---- */

static struct block **bucket_of(const struct mirror *m, uint64_t hash) {
    return &m->buckets[(hash * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (m->bucket_count - 1)];
}

static struct block *find_block(const struct mirror *m, uint64_t hash) {
    struct block *b = *bucket_of(m, hash);
    while (b != NULL && b->hash != hash) b = b->chain;
    return b;
}

/* Doubles the buckets. Without memory it leaves them: the chains are longer then. */
static void grow_buckets(struct mirror *m) {
    if (m->bucket_count > SIZE_MAX / 2) return;
    struct block **buckets = calloc(m->bucket_count * 2, sizeof *buckets);
    if (buckets == NULL) return;
    free(m->buckets);
    m->buckets = buckets;
    m->bucket_count *= 2;
    for (struct block *b = m->oldest; b != NULL; b = b->newer) {
        struct block **bucket = bucket_of(m, b->hash);
        b->chain = *bucket;
        *bucket = b;
    }
}

/* Links a block to the block before it, if that is known and does not follow it. */
static void link_above(const struct mirror *m, struct block *b) {
    struct block *above = b->has_parent ? find_block(m, b->parent) : NULL;
    for (const struct block *a = above; a != NULL; a = a->above)
        if (a == b) return;
    if (above == NULL) return;
    b->above = above;
    b->left = above->last;
    if (above->last != NULL) above->last->right = b;
    else above->first = b;
    above->last = b;
}

static void insert_block(struct mirror *m, struct block *b) {
    if (m->count >= m->bucket_count) grow_buckets(m);
    link_above(m, b);
    struct block **bucket = bucket_of(m, b->hash);
    b->chain = *bucket;
    *bucket = b;
    b->older = m->newest;
    if (m->newest != NULL) m->newest->newer = b;
    else m->oldest = b;
    m->newest = b;
    m->count++;
}

/* Unlinks and frees a block after which no other one comes. */
static void drop_block(struct mirror *m, struct block *b) {
    struct block **at = bucket_of(m, b->hash);
    while (*at != b) at = &(*at)->chain;
    *at = b->chain;
    if (m->cursor == b) m->cursor = b->newer;
    if (b->older != NULL) b->older->newer = b->newer;
    else m->oldest = b->newer;
    if (b->newer != NULL) b->newer->older = b->older;
    else m->newest = b->older;
    if (b->left != NULL) b->left->right = b->right;
    else if (b->above != NULL) b->above->first = b->right;
    if (b->right != NULL) b->right->left = b->left;
    else if (b->above != NULL) b->above->last = b->left;
    m->count--;
    free_block(b);
}

static bool has_copies(const struct block *b) {
    for (int i = 0; i < MEDIA; i++)
        if (b->copies[i] > 0) return true;
    return false;
}

/* Drops a block, and the blocks before it, as far as nothing needs them any more. */
static void drop_unused(struct mirror *m, struct block *b) {
    while (b != NULL && !has_copies(b) && !b->is_pooled && b->first == NULL) {
        struct block *above = b->above;
        drop_block(m, b);
        b = above;
    }
}

static bool leaves_pool(penstock_kv_state state) {
    return state == PENSTOCK_KV_LOCAL_GPU || state == PENSTOCK_KV_EVICTED;
}

/* Applies a transition to one block. The block may be dropped. */
static void move_block(struct mirror *m, struct block *b, const struct move *move) {
    if (leaves_pool(move->state)) {
        if (b->is_pooled && (!move->has_pool || move->pool == b->pooled.pool)) {
            release_access(b->pooled.access);
            b->pooled.access = NULL;
            b->is_pooled = false;
            drop_unused(m, b);
        }
        return;
    }
    if (!move->has_pool && !b->is_pooled) return;
    uint32_t pool = move->has_pool ? move->pool : b->pooled.pool;
    bool stays = b->is_pooled && b->pooled.pool == pool;
    if (move->access != NULL || !stays) {
        if (move->access != NULL) move->access->refs++;
        release_access(b->pooled.access);
        b->pooled.access = move->access;
    }
    b->pooled.state = move->state;
    b->pooled.has_pool = true;
    b->pooled.pool = pool;
    b->is_pooled = true;
}

static void apply_stored(struct mirror *m, struct batch *batch) {
    for (size_t i = 0; i < batch->count; i++) {
        struct block *said = batch->blocks[i], *b = find_block(m, said->hash);
        batch->blocks[i] = NULL;
        bool is_new = b == NULL;
        if (is_new) {
            b = said;
            insert_block(m, b);
        } else {
            if (b->above == NULL) link_above(m, b);
            if (said->has_label) {
                b->has_label = true;
                b->has_group = said->has_group;
                b->layer = said->layer;
                b->expert = said->expert;
                b->group = said->group;
            }
        }
        if (b->copies[batch->medium] < UINT32_MAX) b->copies[batch->medium]++;
        if (said->has_reported) move_block(m, b, &said->reported);
        if (!is_new) free_block(said);
    }
}

static void apply_moved(struct mirror *m, const struct batch *batch) {
    const struct move *move = &batch->move;
    for (size_t i = 0; i < batch->count; i++) {
        struct block *b = find_block(m, batch->hashes[i]);
        if (b != NULL) move_block(m, b, move);
    }
    if (batch->count > 0 || !leaves_pool(move->state) || !move->has_pool) return;
    for (m->cursor = m->oldest; m->cursor != NULL;) {
        struct block *b = m->cursor;
        m->cursor = b->newer;
        move_block(m, b, move);
    }
}

/* Applies a batch. It needs no memory, except that the buckets grow if there is some. */
static void apply_batch(struct mirror *m, struct batch *batch) {
    switch (batch->kind) {
    case STORED:
        apply_stored(m, batch);
        break;
    case REMOVED:
        for (size_t i = 0; i < batch->count; i++) {
            struct block *b = find_block(m, batch->hashes[i]);
            if (b == NULL || b->copies[batch->medium] == 0) continue;
            b->copies[batch->medium]--;
            drop_unused(m, b);
        }
        break;
    case CLEARED:
        for (m->cursor = m->oldest; m->cursor != NULL;) {
            struct block *b = m->cursor;
            m->cursor = b->newer;
            b->copies[batch->medium] = 0;
            drop_unused(m, b);
        }
        break;
    case MOVED:
        apply_moved(m, batch);
        break;
    }
}

/* ---- The description of a state ---- */

/* Where an event of a description ends, and what it has. */
struct mark {
    size_t end, blocks, tokens;
};

/* A description: events after which a reader knows exactly a state, whatever it knew before. */
struct description {
    struct writer body;
    struct mark *marks;
    size_t count, capacity;
    uint32_t block_size;
    struct block *run[RUN_BLOCKS]; /* the stored event which is not written yet */
    size_t run_blocks;
    penstock_kv_medium run_medium;
    uint64_t moved[RUN_BLOCKS]; /* the transition which is not written yet */
    size_t moved_count;
    const struct move *move;
};

static void mark_event(struct description *d, size_t blocks, size_t tokens) {
    if (d->body.failed) return;
    if (d->count == d->capacity) {
        size_t capacity = d->capacity == 0 ? 64 : d->capacity * 2;
        struct mark *marks = capacity > SIZE_MAX / sizeof *marks ? NULL : realloc(d->marks, capacity * sizeof *marks);
        if (marks == NULL) {
            d->body.failed = true;
            return;
        }
        d->marks = marks;
        d->capacity = capacity;
    }
    d->marks[d->count++] = (struct mark){d->body.size, blocks, tokens};
}

static void flush_run(struct description *d) {
    if (d->run_blocks == 0) return;
    write_stored(&d->body, d->run, d->run_blocks, d->block_size, d->run_medium, false);
    mark_event(d, d->run_blocks, d->run_blocks * d->block_size);
    d->run_blocks = 0;
}

/* Describes a copy of a block, in the last event if the block follows the last one of it. */
static void describe_copy(struct description *d, struct block *b, penstock_kv_medium medium) {
    if (d->run_blocks > 0) {
        const struct block *last = d->run[d->run_blocks - 1];
        bool follows = b->has_parent && b->parent == last->hash && medium == d->run_medium &&
                       same_place(b->place, last->place) && d->run_blocks < RUN_BLOCKS &&
                       (d->run_blocks + 1) * (size_t)d->block_size <= RUN_TOKENS;
        if (!follows) flush_run(d);
    }
    d->run_medium = medium;
    d->run[d->run_blocks++] = b;
}

static void flush_moved(struct description *d) {
    if (d->moved_count == 0) return;
    write_moved(&d->body, d->moved, d->moved_count, d->move);
    mark_event(d, d->moved_count, 0);
    d->moved_count = 0;
}

static void describe_move(struct description *d, const struct block *b) {
    if (d->moved_count > 0) {
        bool same = d->move->state == b->pooled.state && d->move->pool == b->pooled.pool &&
                    same_access(d->move->access, b->pooled.access) && d->moved_count < RUN_BLOCKS;
        if (!same) flush_moved(d);
    }
    d->move = &b->pooled;
    d->moved[d->moved_count++] = b->hash;
}

/* Returns the block after b, parents first, of the blocks which follow top. */
static struct block *next_below(struct block *b, const struct block *top) {
    if (b->first != NULL) return b->first;
    while (b != top && b->right == NULL) b = b->above;
    return b == top ? NULL : b->right;
}

/* Describes all blocks below top. Appends the blocks without a copy to gone. */
static void describe_tree(struct description *d, struct block *top, uint64_t *gone, size_t *gone_count) {
    for (struct block *b = top; b != NULL && !d->body.failed; b = next_below(b, top)) {
        if (!has_copies(b)) {
            describe_copy(d, b, PENSTOCK_KV_GPU);
            gone[(*gone_count)++] = b->hash;
        }
        for (penstock_kv_medium medium = PENSTOCK_KV_GPU; medium < MEDIA; medium++)
            for (uint32_t i = 0; i < b->copies[medium] && !d->body.failed; i++) describe_copy(d, b, medium);
    }
}

/* Describes the state of the publisher's base. Returns false without memory. */
static bool describe_base(const penstock_kv_publisher *p, struct description *d) {
    d->block_size = p->block_size;
    d->body.limit = SIZE_MAX;
    uint64_t *gone = malloc((p->base.count + 1) * sizeof *gone);
    size_t gone_count = 0;
    if (gone == NULL) return false;
    for (penstock_kv_medium medium = PENSTOCK_KV_GPU; medium < MEDIA; medium++) {
        if (medium != PENSTOCK_KV_GPU && !p->media_used[medium]) continue;
        write_cleared(&d->body, medium);
        mark_event(d, 0, 0);
    }
    for (size_t i = 0; i < p->pool_count; i++) {
        struct move withdrawn = {PENSTOCK_KV_LOCAL_GPU, true, p->pools[i], NULL};
        write_moved(&d->body, NULL, 0, &withdrawn);
        mark_event(d, 0, 0);
    }
    for (struct block *b = p->base.oldest; b != NULL; b = b->newer)
        if (b->above == NULL) describe_tree(d, b, gone, &gone_count);
    flush_run(d);
    for (const struct block *b = p->base.oldest; b != NULL; b = b->newer)
        if (b->is_pooled) describe_move(d, b);
    flush_moved(d);
    for (size_t i = 0, j = gone_count; i + 1 < j; i++) { /* the blocks after a block go before it */
        uint64_t hash = gone[i];
        gone[i] = gone[--j];
        gone[j] = hash;
    }
    for (size_t i = 0; i < gone_count; i += RUN_BLOCKS) {
        size_t n = gone_count - i < RUN_BLOCKS ? gone_count - i : RUN_BLOCKS;
        write_removed(&d->body, gone + i, n, PENSTOCK_KV_GPU);
        mark_event(d, n, 0);
    }
    free(gone);
    return !d->body.failed;
}

/* Returns the number of the event after the ones which fit in a batch from an event on. */
static size_t cut_chunk(const struct description *d, size_t from) {
    size_t start = from == 0 ? 0 : d->marks[from - 1].end, blocks = 0, tokens = 0, to = from;
    for (; to < d->count && to - from < CHUNK_EVENTS; to++) {
        blocks += d->marks[to].blocks;
        tokens += d->marks[to].tokens;
        bool fits = blocks <= CHUNK_BLOCKS && tokens <= CHUNK_TOKENS && d->marks[to].end - start <= CHUNK_BYTES;
        if (!fits && to > from) break;
    }
    return to;
}

/* ---- Answers ---- */

/* Batches which answer a request: copies, so that no lock is held while they are sent. */
struct answer {
    struct batch **batches;
    size_t count, capacity;
};

static void free_answer(struct answer *a) {
    for (size_t i = 0; i < a->count; i++) free_batch(a->batches[i]);
    free(a->batches);
    *a = (struct answer){0};
}

/* Appends a batch without payload. Returns NULL without memory. */
static struct batch *append_batch(struct answer *a, uint64_t number) {
    if (a->count == a->capacity) {
        size_t capacity = a->capacity == 0 ? 64 : a->capacity * 2;
        struct batch **batches = realloc(a->batches, capacity * sizeof *batches);
        if (batches == NULL) return NULL;
        a->batches = batches;
        a->capacity = capacity;
    }
    struct batch *batch = calloc(1, sizeof *batch);
    if (batch == NULL) return NULL;
    batch->number = number;
    a->batches[a->count++] = batch;
    return batch;
}

static bool append_copy(struct answer *a, struct batch *of) {
    struct batch *batch = append_batch(a, of->number);
    if (batch == NULL) return false;
    zmq_msg_init(&batch->payload);
    batch->has_payload = true;
    return zmq_msg_copy(&batch->payload, &of->payload) == 0;
}

static bool append_description(const penstock_kv_publisher *p, struct answer *a, uint64_t start) {
    struct description *d = calloc(1, sizeof *d);
    if (d == NULL) return false;
    bool ok = describe_base(p, d);
    for (size_t from = 0; ok && from < d->count;) {
        size_t to = cut_chunk(d, from), begin = from == 0 ? 0 : d->marks[from - 1].end;
        struct writer w = {.limit = SIZE_MAX};
        write_batch_start(&w, to - from);
        write_bytes(&w, d->body.data + begin, d->marks[to - 1].end - begin);
        write_batch_end(&w, p);
        struct batch *batch = append_batch(a, 0);
        if (batch == NULL) free(w.data);
        ok = batch != NULL && take_payload(&w, batch) == NULL;
        from = to;
    }
    /* Without numbers for it, which the limits exclude, the reader gets only the buffer, and forgets the rest. */
    if (ok && a->count > start) free_answer(a);
    for (size_t i = 0; ok && i < a->count; i++) a->batches[i]->number = start - a->count + i;
    free(d->body.data);
    free(d->marks);
    free(d);
    return ok;
}

/* Collects the batches from a number on, after a description if some of them are not in the buffer any more. Returns
 * false without memory. */
static bool collect_answer_locked(penstock_kv_publisher *p, uint64_t first, struct answer *a) {
    uint64_t start = p->next - p->buffered;
    if (first < start) {
        if (p->dropped != NULL && first == p->dropped->number) {
            if (!append_copy(a, p->dropped)) return false;
        } else if (!append_description(p, a, start)) {
            return false;
        }
    }
    for (size_t i = 0; i < p->buffered; i++) {
        struct batch *batch = p->buffer[(p->head + i) % p->limit];
        if (batch->number >= first && !append_copy(a, batch)) return false;
    }
    return true;
}

/* ---- Sockets ---- */

static int send_frame(void *socket, const void *data, size_t n, int flags) {
    int sent;
    do sent = zmq_send(socket, data, n, flags);
    while (sent < 0 && zmq_errno() == EINTR);
    return sent;
}

/* Sends a payload as the last frame, and keeps it. */
static int send_payload(void *socket, zmq_msg_t *payload) {
    zmq_msg_t copy;
    zmq_msg_init(&copy);
    int sent = zmq_msg_copy(&copy, payload);
    if (sent == 0) {
        do sent = zmq_msg_send(&copy, socket, 0);
        while (sent < 0 && zmq_errno() == EINTR);
    }
    zmq_msg_close(&copy);
    return sent;
}

/* Sends a batch to all readers. A PUB socket does not wait, and a batch which it loses is asked for. */
static void send_batch_locked(penstock_kv_publisher *p, struct batch *batch) {
    unsigned char number[NUMBER_BYTES];
    put_big_endian(number, batch->number, NUMBER_BYTES);
    if (send_frame(p->pub, p->topic, p->topic_length, ZMQ_SNDMORE) < 0) return;
    if (send_frame(p->pub, number, sizeof number, ZMQ_SNDMORE) < 0) return;
    send_payload(p->pub, &batch->payload);
}

static int64_t read_clock_ms(void) {
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The last batch is sent again while nothing else is, after this time, doubled each time. */
#define FIRST_REPEAT_MS 1000
#define LAST_REPEAT_MS 60000

static void repeat_last_locked(penstock_kv_publisher *p) {
    int64_t now = read_clock_ms();
    if (p->buffered == 0 || now < p->repeat_at) return;
    send_batch_locked(p, p->buffer[(p->head + p->buffered - 1) % p->limit]);
    p->pause = 2 * p->pause < LAST_REPEAT_MS ? 2 * p->pause : LAST_REPEAT_MS;
    p->repeat_at = now + p->pause;
}

/* Receives a message of identity, empty frame and number. Returns false if it is another one. */
static bool receive_request(void *router, zmq_msg_t *identity, uint64_t *first) {
    bool valid = true, more = true;
    int frames = 0;
    for (; more; frames++) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, router, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&frame);
            return false;
        }
        more = zmq_msg_more(&frame) != 0;
        if (frames == 0) zmq_msg_move(identity, &frame);
        if (frames == 2 && zmq_msg_size(&frame) != NUMBER_BYTES) valid = false;
        if (frames == 2 && valid) {
            const unsigned char *bytes = zmq_msg_data(&frame);
            *first = 0;
            for (int i = 0; i < NUMBER_BYTES; i++) *first = *first << 8 | bytes[i];
        }
        if (frames > 2) valid = false;
        zmq_msg_close(&frame);
    }
    return valid && frames == 3;
}

/* Sends one message of an answer. Returns false if the reader is gone, or reads nothing. */
static bool send_reply(void *router, zmq_msg_t *identity, uint64_t number, zmq_msg_t *payload) {
    unsigned char bytes[NUMBER_BYTES];
    put_big_endian(bytes, number, NUMBER_BYTES);
    if (send_frame(router, zmq_msg_data(identity), zmq_msg_size(identity), ZMQ_SNDMORE) < 0) return false;
    if (send_frame(router, "", 0, ZMQ_SNDMORE) < 0) return false;
    if (send_frame(router, bytes, sizeof bytes, ZMQ_SNDMORE) < 0) return false;
    if (payload == NULL) return send_frame(router, "", 0, 0) >= 0;
    return send_payload(router, payload) >= 0;
}

/* Answers a request. A reader which gets no whole answer asks again. */
static void answer_request(penstock_kv_publisher *p) {
    zmq_msg_t identity;
    uint64_t first = 0;
    zmq_msg_init(&identity);
    if (receive_request(p->router, &identity, &first)) {
        struct answer a = {0};
        pthread_mutex_lock(&p->lock);
        bool ok = collect_answer_locked(p, first, &a);
        pthread_mutex_unlock(&p->lock);
        for (size_t i = 0; ok && i < a.count; i++)
            ok = send_reply(p->router, &identity, a.batches[i]->number, &a.batches[i]->payload);
        if (ok) send_reply(p->router, &identity, UINT64_MAX, NULL);
        free_answer(&a);
    }
    zmq_msg_close(&identity);
}

static void *serve_replay(void *argument) {
    penstock_kv_publisher *p = argument;
    for (;;) {
        pthread_mutex_lock(&p->lock);
        bool closed = p->closed;
        if (!closed) repeat_last_locked(p);
        pthread_mutex_unlock(&p->lock);
        if (closed) return NULL;
        zmq_pollitem_t item = {.socket = p->router, .events = ZMQ_POLLIN};
        if (zmq_poll(&item, 1, POLL_MS) > 0) answer_request(p);
    }
}

/* Starts the thread, which gets no signals: they are the program's. */
static int start_thread(penstock_kv_publisher *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&p->thread, NULL, serve_replay, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

/* ---- The publisher ---- */

static const char *describe_error(void) { return zmq_strerror(zmq_errno()); }

/* Returns a bound socket, or NULL and sets *error. */
static void *bind_socket(penstock_kv_publisher *p, int type, int queue, const char *endpoint, char *bound,
                         const char **error) {
    int linger = 1000, mandatory = 1, timeout = 5000;
    size_t size = ENDPOINT_BYTES;
    void *socket = zmq_socket(p->context, type);
    bool ok = socket != NULL && zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger) == 0;
    if (type == ZMQ_PUB) {
        ok = ok && zmq_setsockopt(socket, ZMQ_SNDHWM, &queue, sizeof queue) == 0;
    } else { /* a reader which is gone is an error, and a slow one is waited for */
        ok = ok && zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory) == 0;
        ok = ok && zmq_setsockopt(socket, ZMQ_SNDTIMEO, &timeout, sizeof timeout) == 0;
    }
    ok = ok && zmq_bind(socket, endpoint) == 0 && zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) == 0;
    if (ok) return socket;
    *error = describe_error();
    if (socket != NULL) zmq_close(socket);
    return NULL;
}

static const char *open_sockets(penstock_kv_publisher *p, const penstock_kv_options *o, int queue) {
    const char *error = NULL;
    p->context = zmq_ctx_new();
    if (p->context == NULL) return describe_error();
    const char *endpoint = o->endpoint != NULL ? o->endpoint : "tcp://127.0.0.1:5557";
    p->pub = bind_socket(p, ZMQ_PUB, queue, endpoint, p->endpoint, &error);
    if (p->pub == NULL || o->replay_endpoint == NULL) return error;
    p->router = bind_socket(p, ZMQ_ROUTER, 0, o->replay_endpoint, p->replay_endpoint, &error);
    if (p->router == NULL) return error;
    if (start_thread(p) != 0) return "there are too many threads";
    p->has_replay = true;
    return NULL;
}

const char *penstock_kv_open(const penstock_kv_options *options, penstock_kv_publisher **publisher) {
    if (options == NULL || publisher == NULL) return "options and publisher must not be NULL";
    uint32_t block_size = options->block_size > 0 ? options->block_size : 16;
    uint32_t limit = options->buffer_batches > 0 ? options->buffer_batches : 10000;
    int queue = options->queue != 0 ? options->queue : 100000;
    size_t topic_length = options->topic != NULL ? strlen(options->topic) : 0;
    if (block_size > RUN_TOKENS) return "block_size is above 2^20";
    if (limit > PENSTOCK_KV_MAX_BUFFER) return "buffer_batches is above PENSTOCK_KV_MAX_BUFFER";
    if (queue < 0) return "queue is negative";
    if (topic_length > PENSTOCK_KV_MAX_TEXT) return "topic is longer than PENSTOCK_KV_MAX_TEXT";
    penstock_kv_publisher *p = calloc(1, sizeof *p + topic_length + 1);
    if (p == NULL) return no_memory;
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        free(p);
        return no_memory;
    }
    if (topic_length > 0) memcpy(p->topic, options->topic, topic_length);
    p->topic_length = topic_length;
    p->block_size = block_size;
    p->has_rank = options->rank != NULL;
    p->rank = p->has_rank ? *options->rank : 0;
    p->limit = limit;
    p->buffer = calloc(limit, sizeof(struct batch *));
    p->base.bucket_count = 1024;
    p->base.buckets = calloc(p->base.bucket_count, sizeof(struct block *));
    const char *error = p->buffer == NULL || p->base.buckets == NULL ? no_memory : open_sockets(p, options, queue);
    if (error != NULL) {
        penstock_kv_close(p);
        return error;
    }
    *publisher = p;
    return NULL;
}

void penstock_kv_close(penstock_kv_publisher *p) {
    if (p == NULL) return;
    if (p->has_replay) {
        pthread_mutex_lock(&p->lock);
        p->closed = true;
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    if (p->router != NULL) zmq_close(p->router);
    if (p->pub != NULL) zmq_close(p->pub);
    if (p->context != NULL)
        while (zmq_ctx_term(p->context) < 0 && zmq_errno() == EINTR) continue;
    for (size_t i = 0; i < p->buffered; i++) free_batch(p->buffer[(p->head + i) % p->limit]);
    free_batch(p->dropped);
    free(p->buffer);
    for (struct block *b = p->base.oldest, *newer; b != NULL; b = newer) {
        newer = b->newer;
        free_block(b);
    }
    free(p->base.buckets);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

const char *penstock_kv_endpoint(const penstock_kv_publisher *p) { return p->endpoint; }

const char *penstock_kv_replay_endpoint(const penstock_kv_publisher *p) {
    return p->has_replay ? p->replay_endpoint : NULL;
}

/* Remembers the pool of a transition. Returns false if there are too many pools. */
static bool note_pool_locked(penstock_kv_publisher *p, const struct move *move) {
    if (!move->has_pool) return true;
    for (size_t i = 0; i < p->pool_count; i++)
        if (p->pools[i] == move->pool) return true;
    if (p->pool_count == PENSTOCK_KV_MAX_POOLS) return false;
    p->pools[p->pool_count++] = move->pool;
    return true;
}

static bool note_pools_locked(penstock_kv_publisher *p, const struct batch *batch) {
    size_t before = p->pool_count;
    bool ok = batch->kind != MOVED || note_pool_locked(p, &batch->move);
    for (size_t i = 0; ok && batch->kind == STORED && i < batch->count; i++)
        ok = !batch->blocks[i]->has_reported || note_pool_locked(p, &batch->blocks[i]->reported);
    if (!ok) p->pool_count = before;
    return ok;
}

/* Sends a batch and puts it into the buffer, which owns it then. Frees it if an error is given or found. */
static const char *publish_batch(penstock_kv_publisher *p, struct batch *batch, struct writer *w, const char *error) {
    if (error == NULL) {
        write_batch_end(w, p);
        error = take_payload(w, batch);
    } else {
        free(w->data);
    }
    if (error != NULL) {
        free_batch(batch);
        return error;
    }
    pthread_mutex_lock(&p->lock);
    if (!note_pools_locked(p, batch)) {
        pthread_mutex_unlock(&p->lock);
        free_batch(batch);
        return "pool_id is another one than the PENSTOCK_KV_MAX_POOLS before";
    }
    if (batch->kind != MOVED) p->media_used[batch->medium] = true;
    if (p->buffered == p->limit) {
        free_batch(p->dropped);
        p->dropped = p->buffer[p->head];
        apply_batch(&p->base, p->dropped);
        p->head = (p->head + 1) % p->limit;
        p->buffered--;
    }
    batch->number = p->next++;
    p->buffer[(p->head + p->buffered++) % p->limit] = batch;
    send_batch_locked(p, batch);
    p->pause = FIRST_REPEAT_MS;
    p->repeat_at = read_clock_ms() + p->pause;
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool is_medium(penstock_kv_medium medium) { return (unsigned)medium < MEDIA; }

/* Copies a state in a pool. The list of a stored block says nothing if it is empty. */
static const char *copy_move(const penstock_kv_cxl *from, bool empty_is_absent, struct move *move) {
    if ((unsigned)from->state >= STATES) return "state is none of penstock_kv_state";
    if (from->worker_count > PENSTOCK_KV_MAX_ACCESS)
        return "accessible_workers has more than PENSTOCK_KV_MAX_ACCESS workers";
    if (from->worker_count > 0 && from->accessible_workers == NULL) return "accessible_workers is NULL";
    for (size_t i = 0; i < from->worker_count; i++)
        if (from->accessible_workers[i].id > MAX_WORKER) return "an id in accessible_workers is 2^53 or above";
    move->state = from->state;
    move->has_pool = from->pool_id != NULL;
    move->pool = move->has_pool ? *from->pool_id : 0;
    if (from->accessible_workers == NULL || (from->worker_count == 0 && empty_is_absent)) return NULL;
    move->access = malloc(sizeof *move->access + from->worker_count * sizeof *from->accessible_workers);
    if (move->access == NULL) return no_memory;
    move->access->refs = 1;
    move->access->count = from->worker_count;
    if (from->worker_count > 0)
        memcpy(move->access->workers, from->accessible_workers, from->worker_count * sizeof *from->accessible_workers);
    return NULL;
}

/* Returns the texts of a stored event with one reference, or NULL without memory. */
static struct place *copy_place(const penstock_kv_stored *stored) {
    size_t lora = stored->lora_name != NULL ? strlen(stored->lora_name) : 0;
    size_t salt = stored->cache_salt != NULL ? strlen(stored->cache_salt) : 0;
    struct place *place = malloc(sizeof *place + lora + salt);
    if (place == NULL) return NULL;
    place->refs = 1;
    place->lora_length = stored->lora_name != NULL ? (int)lora : -1;
    place->salt_length = stored->cache_salt != NULL ? (int)salt : -1;
    if (lora > 0) memcpy(place->text, stored->lora_name, lora);
    if (salt > 0) memcpy(place->text + lora, stored->cache_salt, salt);
    return place;
}

/* Copies a block to *copy, which is set as soon as there is something to free. */
static const char *copy_block(const penstock_kv_block *from, struct place *place, struct block **copy) {
    struct block *b = calloc(1, sizeof *b + from->token_count * sizeof *from->token_ids);
    if (b == NULL) return no_memory;
    *copy = b;
    b->hash = from->block_hash;
    b->place = place;
    place->refs++;
    memcpy(b->tokens, from->token_ids, from->token_count * sizeof *from->token_ids);
    if (from->moe_metadata != NULL) {
        b->has_label = true;
        b->layer = from->moe_metadata->layer_id;
        b->expert = from->moe_metadata->expert_id;
        b->has_group = from->moe_metadata->expert_group != NULL;
        if (b->has_group) b->group = *from->moe_metadata->expert_group;
    }
    if (from->cxl_metadata == NULL) return NULL;
    b->has_reported = true;
    return copy_move(from->cxl_metadata, true, &b->reported);
}

static const char *check_stored(const penstock_kv_publisher *p, const penstock_kv_stored *stored) {
    if (stored == NULL || stored->blocks == NULL || stored->block_count == 0) return "there is no block in stored";
    if (!is_medium(stored->medium)) return "medium is none of penstock_kv_medium";
    if (stored->block_count > PENSTOCK_KV_MAX_BLOCKS) return "block_count is above PENSTOCK_KV_MAX_BLOCKS";
    if (stored->block_count * (uint64_t)p->block_size > PENSTOCK_KV_MAX_TOKENS)
        return "the blocks have more than PENSTOCK_KV_MAX_TOKENS tokens";
    if (stored->lora_name != NULL && strlen(stored->lora_name) > PENSTOCK_KV_MAX_TEXT)
        return "lora_name is longer than PENSTOCK_KV_MAX_TEXT";
    if (stored->cache_salt != NULL && strlen(stored->cache_salt) > PENSTOCK_KV_MAX_TEXT)
        return "cache_salt is longer than PENSTOCK_KV_MAX_TEXT";
    for (size_t i = 0; i < stored->block_count; i++)
        if (stored->blocks[i].token_ids == NULL || stored->blocks[i].token_count != p->block_size)
            return "every stored block must have as many tokens as the publisher's block_size";
    return NULL;
}

const char *penstock_kv_publish_stored(penstock_kv_publisher *p, uint64_t event_id, const penstock_kv_stored *stored) {
    (void)event_id;
    const char *error = check_stored(p, stored);
    if (error != NULL) return error;
    struct writer w = {.limit = PENSTOCK_KV_MAX_MESSAGE};
    struct place *place = copy_place(stored);
    struct batch *batch = calloc(1, sizeof *batch);
    if (batch != NULL) batch->blocks = calloc(stored->block_count, sizeof(struct block *));
    if (place == NULL || batch == NULL || batch->blocks == NULL) error = no_memory;
    if (error == NULL) {
        batch->kind = STORED;
        batch->medium = stored->medium;
        batch->count = stored->block_count;
        const uint64_t *parent = stored->parent_hash;
        for (size_t i = 0; error == NULL && i < batch->count; i++) {
            error = copy_block(&stored->blocks[i], place, &batch->blocks[i]);
            if (error == NULL && parent != NULL) {
                batch->blocks[i]->has_parent = true;
                batch->blocks[i]->parent = *parent;
            }
            parent = &stored->blocks[i].block_hash;
        }
    }
    release_place(place);
    if (error == NULL) {
        write_batch_start(&w, 1);
        write_stored(&w, batch->blocks, batch->count, p->block_size, batch->medium, true);
    }
    return publish_batch(p, batch, &w, error);
}

/* Returns a batch with hashes, or NULL and sets *error. */
static struct batch *copy_hashes(enum kind kind, const uint64_t *hashes, size_t n, const char **error) {
    *error = NULL;
    if (n > PENSTOCK_KV_MAX_BLOCKS) *error = "hash_count is above PENSTOCK_KV_MAX_BLOCKS";
    else if (hashes == NULL && n > 0) *error = "block_hashes is NULL";
    if (*error != NULL) return NULL;
    struct batch *batch = calloc(1, sizeof *batch);
    if (batch != NULL && n > 0) batch->hashes = malloc(n * sizeof *hashes);
    if (batch == NULL || (n > 0 && batch->hashes == NULL)) {
        free(batch);
        *error = no_memory;
        return NULL;
    }
    batch->kind = kind;
    batch->count = n;
    if (n > 0) memcpy(batch->hashes, hashes, n * sizeof *hashes);
    return batch;
}

const char *penstock_kv_publish_removed(penstock_kv_publisher *p, uint64_t event_id, const uint64_t *block_hashes,
                                        size_t hash_count, penstock_kv_medium medium) {
    (void)event_id;
    if (!is_medium(medium)) return "medium is none of penstock_kv_medium";
    const char *error;
    struct batch *batch = copy_hashes(REMOVED, block_hashes, hash_count, &error);
    if (batch == NULL) return error;
    batch->medium = medium;
    struct writer w = {.limit = PENSTOCK_KV_MAX_MESSAGE};
    write_batch_start(&w, 1);
    write_removed(&w, batch->hashes, batch->count, medium);
    return publish_batch(p, batch, &w, NULL);
}

const char *penstock_kv_publish_all_cleared(penstock_kv_publisher *p, uint64_t event_id, penstock_kv_medium medium) {
    (void)event_id;
    if (!is_medium(medium)) return "medium is none of penstock_kv_medium";
    const char *error;
    struct batch *batch = copy_hashes(CLEARED, NULL, 0, &error);
    if (batch == NULL) return error;
    batch->medium = medium;
    struct writer w = {.limit = PENSTOCK_KV_MAX_MESSAGE};
    write_batch_start(&w, 1);
    write_cleared(&w, medium);
    return publish_batch(p, batch, &w, NULL);
}

const char *penstock_kv_publish_cxl_state_transition(penstock_kv_publisher *p, uint64_t event_id,
                                                     const uint64_t *block_hashes, size_t hash_count,
                                                     const penstock_kv_cxl *transition) {
    (void)event_id;
    if (transition == NULL) return "transition must not be NULL";
    const char *error;
    struct batch *batch = copy_hashes(MOVED, block_hashes, hash_count, &error);
    if (batch == NULL) return error;
    struct writer w = {.limit = PENSTOCK_KV_MAX_MESSAGE};
    error = copy_move(transition, false, &batch->move);
    if (error == NULL) {
        write_batch_start(&w, 1);
        write_moved(&w, batch->hashes, batch->count, &batch->move);
    }
    return publish_batch(p, batch, &w, error);
}
