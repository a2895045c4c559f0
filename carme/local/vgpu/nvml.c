/* Stands in for libnvidia-ml.so.1 on machines without a GPU: answers NVML's calls from the state
 * file of `carme-vgpu`, so that programs for NVML run unchanged. cards.h reads the cards. */
#include "cards.h"

/* ---- library ---- */
API int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int code = SUCCESS;
  pthread_mutex_lock(&lock);
  if (!references) {
    code = open_state();
    for (uint32_t i = visible_count = 0; !code && i < state->gpu_count; i++) {
      gpu_t gpu;
      code = read_gpu(i, &gpu);
      if (!code && !is_forbidden(gpu.minor)) visible[visible_count++] = i;
    }
  }
  if (!code) references++;
  pthread_mutex_unlock(&lock);
  return code;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }

API int nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  int code = references ? SUCCESS : UNINITIALIZED;
  if (references && !--references) { munmap(state, sizeof(state_t)); state = NULL; }
  pthread_mutex_unlock(&lock);
  return code;
}

API const char *nvmlErrorString(int code) {
  switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
  }
}

API int nvmlSystemGetDriverVersion(char *out, unsigned size) {
  return references ? copy_text("0.1 (virtual)", out, size) : UNINITIALIZED;
}
API int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
  return references ? copy_text("12.0.1 (virtual)", out, size) : UNINITIALIZED;
}
API int nvmlSystemGetCudaDriverVersion(int *version) {
  if (!version) return INVALID_ARGUMENT;
  *version = 12000;
  return references ? SUCCESS : UNINITIALIZED;
}
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

API int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
  char path[64], text[1024];
  if (!name || !size) return INVALID_ARGUMENT;
  snprintf(path, sizeof path, "/proc/%u/comm", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NOT_FOUND;
  ssize_t count = read(fd, text, sizeof text - 1);
  close(fd);
  if (count <= 0) return NOT_FOUND;
  text[count - 1] = 0; /* replaces the kernel's newline */
  snprintf(name, size, "%s", text);
  return SUCCESS;
}

/* ---- finding cards ---- */
API int nvmlDeviceGetCount_v2(unsigned *count) {
  if (!references) return UNINITIALIZED;
  if (!count) return INVALID_ARGUMENT;
  *count = visible_count;
  return SUCCESS;
}
API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static int handle_at(int position, const char *call, device_t *device) {
  gpu_t gpu;
  handles[visible[position]].index = visible[position];
  device_t found = (device_t)&handles[visible[position]];
  int code = enter(found, call, &gpu);
  if (!code) *device = found;
  return code;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
  if (!references) return UNINITIALIZED;
  if (!device || index >= (unsigned)visible_count) return INVALID_ARGUMENT;
  return handle_at(index, __func__, device);
}
API int nvmlDeviceGetHandleByIndex(unsigned index, device_t *device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
static int find(const char *wanted, size_t offset, const char *call, device_t *device) {
  if (!references) return UNINITIALIZED;
  if (!wanted || !device) return INVALID_ARGUMENT;
  for (int i = 0; i < visible_count; i++) {
    gpu_t gpu;
    if (!read_gpu(visible[i], &gpu) && !strcasecmp((char *)&gpu + offset, wanted))
      return handle_at(i, call, device);
  }
  return NOT_FOUND;
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
  return find(uuid, offsetof(gpu_t, uuid), __func__, device);
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device_t *device) {
  return find(bus_id, offsetof(gpu_t, bus_id), __func__, device);
}
API int nvmlDeviceGetHandleByPciBusId(const char *bus_id, device_t *device) {
  return find(bus_id, offsetof(gpu_t, bus_id), "nvmlDeviceGetHandleByPciBusId_v2", device);
}
API int nvmlDeviceGetHandleBySerial(const char *serial, device_t *device) {
  return find(serial, offsetof(gpu_t, serial), __func__, device);
}

/* ---- properties of a card ---- */
API int nvmlDeviceGetIndex(device_t device, unsigned *index) {
  ENTER(device, index);
  for (int i = 0; i < visible_count; i++)
    if (visible[i] == device->index) { *index = i; return SUCCESS; }
  return NOT_FOUND;
}
#define TEXT(function, field) \
  API int function(device_t device, char *out, unsigned size) { \
    ENTER(device, out); \
    return copy_text(gpu.field, out, size); \
  }
TEXT(nvmlDeviceGetName, name)
TEXT(nvmlDeviceGetUUID, uuid)
TEXT(nvmlDeviceGetSerial, serial)

#define NUMBER(function, type, expression) \
  API int function(device_t device, type *out) { \
    ENTER(device, out); \
    *out = (expression); \
    return SUCCESS; \
  }
NUMBER(nvmlDeviceGetMinorNumber, unsigned, gpu.minor)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, 1)
NUMBER(nvmlDeviceGetComputeMode, unsigned, 0)
NUMBER(nvmlDeviceGetDisplayMode, unsigned, 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, 0)
NUMBER(nvmlDeviceGetPerformanceState, unsigned, gpu.pstate)
NUMBER(nvmlDeviceGetPowerState, unsigned, gpu.pstate)

API int nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor) {
  ENTER(device, major, minor);
  *major = gpu.compute_major;
  *minor = gpu.compute_minor;
  return SUCCESS;
}

typedef struct {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
} pci_t;
API int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *out) {
  ENTER(device, out);
  memset(out, 0, sizeof *out);
  out->domain = gpu.pci_domain;
  out->bus = gpu.pci_bus;
  out->device = gpu.pci_device;
  out->pci_device_id = gpu.pci_device_id;
  out->pci_subsystem_id = gpu.pci_subsystem_id;
  memcpy(out->bus_id, gpu.bus_id, sizeof out->bus_id);
  snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0",
           gpu.pci_domain & 0xFFFF, gpu.pci_bus & 0xFF, gpu.pci_device & 0xFF);
  return SUCCESS;
}
API int nvmlDeviceGetPciInfo_v2(device_t device, pci_t *out) { return nvmlDeviceGetPciInfo_v3(device, out); }
API int nvmlDeviceGetPciInfo(device_t device, pci_t *out) { return nvmlDeviceGetPciInfo_v3(device, out); }

/* ---- use of a card ---- */
typedef struct { uint64_t total, free, used; } memory_t;
API int nvmlDeviceGetMemoryInfo(device_t device, memory_t *out) {
  ENTER(device, out);
  out->total = gpu.memory_total_bytes;
  out->used = gpu.memory_used_bytes + gpu.memory_reserved_bytes; /* as the driver counts in v1 */
  out->free = out->total - out->used;
  return SUCCESS;
}
typedef struct { unsigned version; uint64_t total, reserved, free, used; } memory_v2_t;
API int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *out) {
  ENTER(device, out);
  if (out->version != (sizeof *out | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
  out->total = gpu.memory_total_bytes;
  out->reserved = gpu.memory_reserved_bytes;
  out->used = gpu.memory_used_bytes;
  out->free = out->total - out->used - out->reserved;
  return SUCCESS;
}
typedef struct { unsigned gpu, memory; } utilization_t;
API int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *out) {
  ENTER(device, out);
  out->gpu = gpu.util_gpu_percent;
  out->memory = gpu.util_memory_percent;
  return SUCCESS;
}
API int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *out) {
  ENTER(device, out);
  if (sensor) return INVALID_ARGUMENT;
  *out = gpu.temperature_c;
  return SUCCESS;
}
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
API int nvmlDeviceGetTemperatureV(device_t device, temperature_t *out) {
  ENTER(device, out);
  if (out->sensor) return INVALID_ARGUMENT;
  out->temperature = gpu.temperature_c;
  return SUCCESS;
}
NUMBER(nvmlDeviceGetPowerUsage, unsigned, gpu.power_mw)
NUMBER(nvmlDeviceGetPowerManagementMode, unsigned, 1)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, gpu.limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, gpu.limit_max_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, gpu.limit_mw)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, gpu.energy_mj)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, gpu.throttle_reasons)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, gpu.throttle_reasons)
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 1 | 4)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 1 | 4)
API int nvmlDeviceGetPowerManagementLimitConstraints(device_t device, unsigned *low, unsigned *high) {
  ENTER(device, low, high);
  *low = gpu.limit_min_mw;
  *high = gpu.limit_max_mw;
  return SUCCESS;
}
API int nvmlDeviceGetClockInfo(device_t device, unsigned type, unsigned *out) {
  ENTER(device, out);
  if (type > 3) return INVALID_ARGUMENT;
  *out = gpu.clock_mhz[type];
  return SUCCESS;
}
API int nvmlDeviceGetMaxClockInfo(device_t device, unsigned type, unsigned *out) {
  ENTER(device, out);
  if (type > 3) return INVALID_ARGUMENT;
  *out = gpu.clock_max_mhz[type];
  return SUCCESS;
}
API int nvmlDeviceGetFanSpeed(device_t device, unsigned *out) {
  ENTER(device, out);
  return NOT_SUPPORTED; /* like every card without a fan */
}
API int nvmlDeviceGetEccMode(device_t device, unsigned *current, unsigned *pending) {
  ENTER(device, current, pending);
  if (!gpu.has_ecc) return NOT_SUPPORTED;
  *current = *pending = 1;
  return SUCCESS;
}
API int nvmlDeviceGetTotalEccErrors(device_t device, int type, int counter, unsigned long long *out) {
  ENTER(device, out);
  (void)counter;
  if (!gpu.has_ecc) return NOT_SUPPORTED;
  *out = type ? gpu.ecc_uncorrected : gpu.ecc_corrected;
  return SUCCESS;
}
API int nvmlDeviceGetPcieThroughput(device_t device, int counter, unsigned *out) {
  ENTER(device, out);
  if (counter != 0 && counter != 1) return INVALID_ARGUMENT;
  *out = counter ? gpu.pcie_rx_kb_per_second : gpu.pcie_tx_kb_per_second;
  return SUCCESS;
}
API int nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *active) {
  ENTER(device, active);
  if (!gpu.nvlinks) return NOT_SUPPORTED;
  if (link >= gpu.nvlinks) return INVALID_ARGUMENT;
  *active = 1;
  return SUCCESS;
}
API int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
  ENTER(device, current, pending);
  if (!gpu.has_mig) return NOT_SUPPORTED;
  *current = *pending = 0;
  return SUCCESS;
}
API int nvmlDeviceIsMigDeviceHandle(device_t device, unsigned *is_mig) {
  ENTER(device, is_mig);
  *is_mig = 0;
  return SUCCESS;
}

typedef struct {
  unsigned field, scope;
  long long timestamp_us, latency_us;
  unsigned type, code;
  union { double d; unsigned ui; uint64_t ull; } value;
} field_t;
enum { FIELD_ENERGY = 83, FIELD_NVLINK_TX = 138, FIELD_NVLINK_RX = 139, TYPE_ULL = 3 };
API int nvmlDeviceGetFieldValues(device_t device, int count, field_t *fields) {
  ENTER(device, fields);
  for (int i = 0; i < count; i++) {
    field_t *field = &fields[i];
    field->timestamp_us = gpu.updated_us;
    field->latency_us = 0;
    field->type = TYPE_ULL;
    field->code = SUCCESS;
    if (field->field == FIELD_ENERGY) field->value.ull = gpu.energy_mj;
    else if (field->field == FIELD_NVLINK_TX && gpu.nvlinks) field->value.ull = gpu.nvlink_tx_kib;
    else if (field->field == FIELD_NVLINK_RX && gpu.nvlinks) field->value.ull = gpu.nvlink_rx_kib;
    else field->code = NOT_SUPPORTED;
  }
  return SUCCESS;
}

/* ---- processes on a card ---- */
typedef struct { unsigned pid; uint64_t memory; } process_v1_t;
typedef struct { unsigned pid; uint64_t memory; unsigned gpu_instance, compute_instance; } process_v2_t;
static int processes(const gpu_t *gpu, unsigned *count, void *out, int is_v1) {
  unsigned room = *count, have = gpu->process_count < MAX_PROCESSES ? gpu->process_count : MAX_PROCESSES;
  *count = have;
  if (!have) return SUCCESS;
  if (room < have || !out) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < have; i++) {
    const process_t *p = &gpu->processes[i];
    if (is_v1) ((process_v1_t *)out)[i] = (process_v1_t){p->pid, p->memory_bytes};
    else ((process_v2_t *)out)[i] = (process_v2_t){p->pid, p->memory_bytes, ~0u, ~0u};
  }
  return SUCCESS;
}
API int nvmlDeviceGetComputeRunningProcesses(device_t device, unsigned *count, void *out) {
  ENTER(device, count);
  return processes(&gpu, count, out, 1);
}
API int nvmlDeviceGetComputeRunningProcesses_v2(device_t device, unsigned *count, void *out) {
  ENTER(device, count);
  return processes(&gpu, count, out, 0);
}
API int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, void *out) {
  ENTER(device, count);
  return processes(&gpu, count, out, 0);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned *count, void *out) {
  ENTER(device, count);
  (void)out;
  *count = 0;
  return SUCCESS;
}
typedef struct { unsigned pid; uint64_t timestamp_us; unsigned sm, memory, encoder, decoder; } sample_t;
API int nvmlDeviceGetProcessUtilization(device_t device, sample_t *out, unsigned *count, unsigned long long since_us) {
  ENTER(device, count);
  unsigned room = *count, have = gpu.process_count < MAX_PROCESSES ? gpu.process_count : MAX_PROCESSES;
  if (!have || gpu.updated_us <= since_us) { *count = 0; return NOT_FOUND; }
  *count = have;
  if (!out || room < have) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < have; i++)
    out[i] = (sample_t){gpu.processes[i].pid, gpu.updated_us, gpu.processes[i].sm_percent, 0, 0, 0};
  return SUCCESS;
}

/* ---- XID events: a change of xid_count is one event ---- */
enum { EVENT_XID = 8 };
typedef struct { int watched[MAX_GPUS]; uint64_t seen[MAX_GPUS]; } *events_t;
typedef struct { device_t device; uint64_t type, data; unsigned gpu_instance, compute_instance; } event_t;
API int nvmlEventSetCreate(events_t *set) {
  if (!references) return UNINITIALIZED;
  if (!set) return INVALID_ARGUMENT;
  *set = calloc(1, sizeof **set);
  return *set ? SUCCESS : UNKNOWN;
}
API int nvmlEventSetFree(events_t set) { free(set); return SUCCESS; }
API int nvmlDeviceGetSupportedEventTypes(device_t device, unsigned long long *types) {
  ENTER(device, types);
  *types = EVENT_XID;
  return SUCCESS;
}
API int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, events_t set) {
  ENTER(device, set);
  if (types & ~(unsigned long long)EVENT_XID) return NOT_SUPPORTED;
  set->watched[device->index] = 1;
  set->seen[device->index] = gpu.xid_count;
  return SUCCESS;
}
API int nvmlEventSetWait_v2(events_t set, event_t *out, unsigned timeout_ms) {
  if (!references) return UNINITIALIZED;
  if (!set || !out) return INVALID_ARGUMENT;
  for (unsigned waited = 0;; waited += 20) {
    for (int i = 0; i < MAX_GPUS; i++) {
      gpu_t gpu;
      if (!set->watched[i] || read_gpu(i, &gpu) || gpu.xid_count == set->seen[i]) continue;
      set->seen[i] = gpu.xid_count;
      *out = (event_t){(device_t)&handles[i], EVENT_XID, gpu.xid_last, ~0u, ~0u};
      return SUCCESS;
    }
    if (waited >= timeout_ms) return TIMEOUT;
    nanosleep(&(struct timespec){0, 20 * 1000 * 1000}, NULL);
  }
}
API int nvmlEventSetWait(events_t set, event_t *out, unsigned timeout_ms) {
  return nvmlEventSetWait_v2(set, out, timeout_ms);
}
