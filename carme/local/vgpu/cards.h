/* The state file of `carme-vgpu`, and how a call reads a card from it.
 *
 * The file has two copies of all cards. The writer fills the copy that is not valid and then
 * increases `generation`, whose lowest bit selects the valid copy: readers never see a partial
 * update, and a writer that is killed leaves the valid copy unchanged.
 * The layout is that of state.py; both check its size.
 *
 * The file is CARME_VGPU_STATE, else $CARME_VGPU_DIR/$SLURMD_NODENAME.state, so that each job on
 * the one-machine cluster sees the cards of its node. Cards whose device file the job's cgroup
 * denies are hidden, as by the real driver. NVML's clients report calls that the library does not
 * have as "function not found".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_PROCESSES 32
#define MAX_FAULTS 16
#define LAYOUT 1

enum {
  SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
  NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10,
  FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999,
};

typedef struct { uint32_t pid, sm_percent; uint64_t memory_bytes; } process_t;
typedef struct { char call[56]; int32_t code; uint32_t unused; } fault_t;
typedef struct {
  char name[96], uuid[48], serial[32], bus_id[32];
  uint32_t minor, pci_domain, pci_bus, pci_device, pci_device_id, pci_subsystem_id;
  uint32_t compute_major, compute_minor;
  uint64_t memory_total_bytes, memory_reserved_bytes, memory_used_bytes;
  uint32_t temperature_c, power_mw, limit_mw, limit_min_mw, limit_max_mw, pstate;
  uint32_t util_gpu_percent, util_memory_percent;
  uint32_t clock_mhz[4], clock_max_mhz[4]; /* graphics, SM, memory, video: NVML's order */
  uint64_t throttle_reasons, energy_mj, ecc_corrected, ecc_uncorrected;
  uint32_t has_ecc, has_mig, nvlinks, unused;
  uint32_t pcie_tx_kb_per_second, pcie_rx_kb_per_second;
  uint64_t nvlink_tx_kib, nvlink_rx_kib, xid_count, xid_last, updated_us;
  uint32_t process_count, fault_count;
  process_t processes[MAX_PROCESSES];
  fault_t faults[MAX_FAULTS];
} gpu_t;
typedef struct { gpu_t gpus[MAX_GPUS]; } copy_t;
typedef struct {
  char magic[8];
  uint32_t layout, gpu_count;
  volatile uint64_t generation;
  uint64_t unused[5];
  copy_t copies[2];
} state_t;
_Static_assert(sizeof(gpu_t) == CARME_GPU_SIZE, "state.py and nvml.c disagree about the layout");

typedef struct { int index; } *device_t;
static struct { int index; } handles[MAX_GPUS];
static int visible[MAX_GPUS], visible_count, references;
static state_t *state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int find_state(char *path, size_t size) {
  const char *file = getenv("CARME_VGPU_STATE");
  const char *dir = getenv("CARME_VGPU_DIR"), *node = getenv("SLURMD_NODENAME");
  if (file && *file) return snprintf(path, size, "%s", file) < (int)size;
  if (!dir || !*dir || !node || !*node || strchr(node, '/')) return 0;
  return snprintf(path, size, "%s/%s.state", dir, node) < (int)size;
}

static int open_state(void) {
  char path[4096];
  struct stat info;
  if (!find_state(path, sizeof path)) return DRIVER_NOT_LOADED;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES ? NO_PERMISSION : DRIVER_NOT_LOADED;
  void *map = MAP_FAILED;
  if (fstat(fd, &info) == 0 && info.st_size >= (off_t)sizeof(state_t))
    map = mmap(NULL, sizeof(state_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (map == MAP_FAILED) return DRIVER_NOT_LOADED;
  state = map;
  if (memcmp(state->magic, "CARMEGPU", 8) || state->layout != LAYOUT || state->gpu_count > MAX_GPUS) {
    munmap(map, sizeof(state_t));
    state = NULL;
    return DRIVER_NOT_LOADED;
  }
  return SUCCESS;
}

/* A consistent copy of one card. The generation changes a few times a second and the copy takes
 * a microsecond, so the second attempt practically always succeeds. */
static int read_gpu(int index, gpu_t *out) {
  for (int attempt = 0; attempt < 1000; attempt++) {
    uint64_t before = __atomic_load_n(&state->generation, __ATOMIC_ACQUIRE);
    memcpy(out, &state->copies[before & 1].gpus[index], sizeof *out);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&state->generation, __ATOMIC_ACQUIRE) == before) return SUCCESS;
  }
  return TIMEOUT;
}

static int is_forbidden(uint32_t minor) {
  char path[32];
  snprintf(path, sizeof path, "/dev/nvidia%u", minor);
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) { close(fd); return 0; }
  return errno == EPERM || errno == EACCES; /* ENXIO: allowed, but without a driver */
}

static int fault_of(const gpu_t *gpu, const char *call) {
  for (uint32_t i = 0; i < gpu->fault_count && i < MAX_FAULTS; i++)
    if (!strcmp(gpu->faults[i].call, call) || !strcmp(gpu->faults[i].call, "*"))
      return gpu->faults[i].code;
  return SUCCESS;
}

static int enter(device_t device, const char *call, gpu_t *gpu) {
  if (!references) return UNINITIALIZED;
  if (!device) return INVALID_ARGUMENT;
  int code = read_gpu(device->index, gpu);
  return code ? code : fault_of(gpu, call);
}
/* The start of every call on a card: copies it to `gpu`, and returns its fault if it has one. */
#define ENTER(device, ...) \
  gpu_t gpu; \
  const void *needed[] = {__VA_ARGS__}; \
  for (size_t i_ = 0; i_ < sizeof needed / sizeof *needed; i_++) if (!needed[i_]) return INVALID_ARGUMENT; \
  int code_ = enter(device, __func__, &gpu); \
  if (code_) return code_

static int copy_text(const char *text, char *out, unsigned size) {
  if (!out) return INVALID_ARGUMENT;
  if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
  strcpy(out, text);
  return SUCCESS;
}

