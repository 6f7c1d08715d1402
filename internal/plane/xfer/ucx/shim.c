//go:build ucx && cgo

#include "shim.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// The functions of UCX. The library is not linked: its constructors take signals which are Go's, unless the
// environment says otherwise, which must be set before it is loaded.
#define FUNCTIONS(F)                                                                                                   \
  F(ucp_init_version)                                                                                                  \
  F(ucp_cleanup)                                                                                                       \
  F(ucp_config_read)                                                                                                   \
  F(ucp_config_release)                                                                                                \
  F(ucp_worker_create)                                                                                                 \
  F(ucp_worker_destroy)                                                                                                \
  F(ucp_worker_progress)                                                                                               \
  F(ucp_worker_get_address)                                                                                            \
  F(ucp_worker_release_address)                                                                                        \
  F(ucp_worker_get_efd)                                                                                                \
  F(ucp_worker_arm)                                                                                                    \
  F(ucp_worker_signal)                                                                                                 \
  F(ucp_worker_set_am_recv_handler)                                                                                    \
  F(ucp_ep_create)                                                                                                     \
  F(ucp_ep_close_nbx)                                                                                                  \
  F(ucp_am_send_nbx)                                                                                                   \
  F(ucp_am_data_release)                                                                                               \
  F(ucp_request_free)
#define DECLARE(name) static __typeof__(&name) p_##name;
FUNCTIONS(DECLARE)

static const char *(*p_ucs_status_string)(ucs_status_t);

enum { AM_ID = 1 };

const char *px_load(void) {
  setenv("UCX_HANDLE_ERRORS", "none", 1); // Go handles signals
  setenv("UCX_ERROR_SIGNALS", "", 1);
  setenv("UCX_MEM_EVENTS", "n", 0); // no hooks in mmap: all memory that is sent is allocated once
  setenv("UCX_VFS_ENABLE", "n", 0); // no thread for a file system of counters
  setenv("UCX_LOG_FILE", "stderr", 0);
  setenv("UCX_LOG_LEVEL", "fatal", 0); // the end of a peer is no error of this process
  void *lib = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (lib == NULL) return dlerror();
#define LOAD(name)                                                                                                     \
  if ((p_##name = (__typeof__(&name))dlsym(lib, #name)) == NULL) return dlerror();
  FUNCTIONS(LOAD)
  p_ucs_status_string = (const char *(*)(ucs_status_t))dlsym(lib, "ucs_status_string"); // of libucs
  return p_ucs_status_string == NULL ? dlerror() : NULL;
}

const char *px_status(int status) { return p_ucs_status_string((ucs_status_t)status); }

// current is the worker of the call in progress, for callbacks which have no other way to it.
static __thread px_worker *current;

static px_event *add_event(px_worker *w, uint32_t kind) {
  if (w->count == w->capacity) {
    size_t capacity = w->capacity == 0 ? 64 : 2 * w->capacity;
    px_event *events = realloc(w->events, capacity * sizeof(px_event));
    if (events == NULL) {
      w->failed = 1;
      return NULL;
    }
    w->events = events;
    w->capacity = capacity;
  }
  px_event *e = &w->events[w->count++];
  memset(e, 0, sizeof(*e));
  e->kind = kind;
  return e;
}

static ucs_status_t on_message(void *arg, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param) {
  px_event *e = add_event(arg, PX_RECEIVED);
  if (e == NULL) return UCS_OK;
  e->length = length;
  e->header_length = header_length < sizeof(e->header) ? header_length : sizeof(e->header);
  memcpy(e->header, header, e->header_length);
  if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) { // no peer of ours sends so: it is refused
    e->header_length = 0;
    return UCS_OK;
  }
  if (length == 0) return UCS_OK;
  if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) {
    e->data = data;
    e->held = PX_UCX;
    return UCS_INPROGRESS;
  }
  e->data = malloc(length);
  if (e->data == NULL) {
    e->header_length = 0;
    return UCS_OK;
  }
  memcpy(e->data, data, length);
  e->held = PX_MALLOC;
  return UCS_OK;
}

static void on_failure(void *arg, ucp_ep_h ep, ucs_status_t status) {
  px_event *e = add_event(current, PX_FAILED);
  if (e == NULL) return;
  e->id = (uint64_t)(uintptr_t)arg;
  e->status = status;
}

// The tag of a message is its low byte of user data, the id of its endpoint the rest.
static void on_sent(void *request, ucs_status_t status, void *user_data) {
  px_event *e = add_event(current, PX_SENT);
  if (e != NULL) {
    e->id = (uint64_t)(uintptr_t)user_data >> 8;
    e->tag = (uint64_t)(uintptr_t)user_data & 0xff;
    e->status = status;
  }
  p_ucp_request_free(request);
}

static void on_closed(void *request, ucs_status_t status, void *user_data) {
  px_event *e = add_event(current, PX_CLOSED);
  if (e != NULL) {
    e->id = (uint64_t)(uintptr_t)user_data;
    e->status = status;
  }
  p_ucp_request_free(request);
}

int px_open(px_worker **out, int *fd) {
  px_worker *w = calloc(1, sizeof(px_worker));
  if (w == NULL) return UCS_ERR_NO_MEMORY;
  ucp_config_t *config;
  ucs_status_t s = p_ucp_config_read(NULL, NULL, &config);
  if (s != UCS_OK) {
    free(w);
    return s;
  }
  ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                         .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                         .mt_workers_shared = 0};
  s = p_ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &w->context);
  p_ucp_config_release(config);
  if (s != UCS_OK) {
    free(w);
    return s;
  }
  ucp_worker_params_t wp = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SERIALIZED};
  s = p_ucp_worker_create(w->context, &wp, &w->worker);
  if (s == UCS_OK) {
    ucp_am_handler_param_t hp = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                                               UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                 .id = AM_ID,
                                 .flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
                                 .cb = on_message,
                                 .arg = w};
    s = p_ucp_worker_set_am_recv_handler(w->worker, &hp);
    if (s == UCS_OK) s = p_ucp_worker_get_efd(w->worker, fd);
    if (s == UCS_OK) s = p_ucp_worker_get_address(w->worker, &w->address, &w->address_length);
    if (s != UCS_OK) p_ucp_worker_destroy(w->worker);
  }
  if (s != UCS_OK) {
    p_ucp_cleanup(w->context);
    free(w);
    return s;
  }
  *out = w;
  return UCS_OK;
}

void px_destroy(px_worker *w) {
  current = w;
  p_ucp_worker_release_address(w->worker, w->address);
  p_ucp_worker_destroy(w->worker);
  p_ucp_cleanup(w->context);
  for (size_t i = 0; i < w->count; i++) { // endpoints are closed, so no data is UCX's
    if (w->events[i].held == PX_MALLOC) free(w->events[i].data);
  }
  free(w->events);
  free(w);
}

int px_connect(px_worker *w, const void *address, uint64_t id, void **ep) {
  current = w;
  ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
                            .address = address,
                            .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                            .err_handler = {.cb = on_failure, .arg = (void *)(uintptr_t)id}};
  ucp_ep_h created = NULL;
  ucs_status_t s = p_ucp_ep_create(w->worker, &params, &created);
  *ep = created;
  return s;
}

int px_send(px_worker *w, void *ep, void *header, size_t header_length, void *data, size_t length, uint64_t id, uint64_t tag) {
  current = w;
  ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                .flags = UCP_AM_SEND_FLAG_EAGER,
                                .cb = {.send = on_sent},
                                .user_data = (void *)(uintptr_t)(id << 8 | tag)};
  ucs_status_ptr_t r = p_ucp_am_send_nbx(ep, AM_ID, header, header_length, data, length, &params);
  if (r == NULL) return UCS_OK;
  return UCS_PTR_IS_ERR(r) ? UCS_PTR_STATUS(r) : UCS_INPROGRESS;
}

int px_close(px_worker *w, void *ep, uint64_t id) {
  current = w;
  ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                .flags = UCP_EP_CLOSE_FLAG_FORCE,
                                .cb = {.send = on_closed},
                                .user_data = (void *)(uintptr_t)id};
  ucs_status_ptr_t r = p_ucp_ep_close_nbx(ep, &params);
  if (r == NULL) return UCS_OK;
  return UCS_PTR_IS_ERR(r) ? UCS_PTR_STATUS(r) : UCS_INPROGRESS;
}

void px_release(px_worker *w, void *data, uint32_t held) {
  current = w;
  if (held == PX_UCX) p_ucp_am_data_release(w->worker, data);
  if (held == PX_MALLOC) free(data);
}

int px_progress(px_worker *w, int rounds) {
  current = w;
  while (rounds-- > 0) {
    if (p_ucp_worker_progress(w->worker) == 0) return 0;
  }
  return 1;
}

int px_arm(px_worker *w) {
  current = w;
  return p_ucp_worker_arm(w->worker);
}

void px_signal(px_worker *w) { p_ucp_worker_signal(w->worker); }
