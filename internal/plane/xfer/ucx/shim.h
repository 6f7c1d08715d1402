//go:build ucx && cgo

// The part of UCX that is used, loaded at run time, and events instead of callbacks.
#include <stddef.h>
#include <stdint.h>
#include <ucp/api/ucp.h>

enum {
  PX_RECEIVED = 1, // a message; held says how to free data
  PX_SENT,         // the memory of a message is free; id and tag are those of px_send
  PX_FAILED,       // the endpoint id has failed
  PX_CLOSED,       // px_close of id is done
};

enum { PX_UCX = 1, PX_MALLOC = 2 }; // whose memory the data of a message is

typedef struct {
  uint32_t kind;
  int32_t status;
  uint64_t id;
  uint64_t tag;
  void *data;
  uint64_t length;
  uint32_t held;
  uint32_t header_length;
  uint8_t header[24];
} px_event;

typedef struct {
  ucp_context_h context;
  ucp_worker_h worker;
  ucp_address_t *address;
  size_t address_length;
  px_event *events;
  size_t count, capacity;
  int failed; // memory for an event was missing
} px_worker;

const char *px_load(void);
const char *px_status(int status);
int px_open(px_worker **out, int *fd);
void px_destroy(px_worker *w);
int px_connect(px_worker *w, const void *address, uint64_t id, void **ep);
int px_send(px_worker *w, void *ep, void *header, size_t header_length, void *data, size_t length, uint64_t id, uint64_t tag);
int px_close(px_worker *w, void *ep, uint64_t id);
void px_release(px_worker *w, void *data, uint32_t held);
int px_progress(px_worker *w, int rounds);
int px_arm(px_worker *w);
void px_signal(px_worker *w);
