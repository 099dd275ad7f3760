/* SPDX-License-Identifier: Apache-2.0
 * A plug-in of elastrun: metrics and failures as lines of a CSV file, and a health check that fails
 * when the loss is not a number any more. See README.md and elastrun-plugin(7). */
#include <elastrun/plugin/elastrun_plugin.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static FILE* file;
static const elastrun_host* host;
static const char* trouble = "";
static int is_lost;

static int open_file(const elastrun_host* given, void** self) {
  (void)self; /* one file is enough for this one */
  host = given;
  file = fopen(host->argument[0] != '\0' ? host->argument : "loss.csv", "w");
  if (file == NULL) trouble = strerror(errno);
  return file == NULL;
}

static const elastrun_attribute* find(const elastrun_record* record, const char* key) {
  for (size_t i = 0; i < record->attribute_count; ++i) {
    if (strcmp(record->attributes[i].key, key) == 0) return &record->attributes[i];
  }
  return NULL;
}

static int put(const elastrun_record* record, double value) {
  const elastrun_attribute* rank = find(record, "rank");
  const int64_t number =
      rank != NULL && rank->value.type == ELASTRUN_WHOLE ? rank->value.as.whole : -1;
  const int wrote = fprintf(file, "%" PRId64 ",%s,%s,%" PRId64 ",%g\n", record->time_ns,
                            record->scope, record->name, number, value);
  if (wrote < 0) trouble = strerror(errno);
  return wrote < 0;
}

static int metric(void* self, const elastrun_record* record) {
  (void)self;
  double value = NAN;
  if (record->value.type == ELASTRUN_NUMBER) value = record->value.as.number;
  if (record->value.type == ELASTRUN_WHOLE) value = (double)record->value.as.whole;
  if (strcmp(record->name, "loss") == 0 && isnan(value) && !is_lost) {
    is_lost = 1;
    host->log(host, ELASTRUN_WARN, "the loss is not a number");
  }
  return put(record, value);
}

static int event(void* self, const elastrun_record* record) {
  (void)self;
  return record->severity >= ELASTRUN_ERROR ? put(record, 1) : 0;
}

static int flush(void* self) {
  (void)self;
  if (fflush(file) == 0) return 0;
  trouble = strerror(errno);
  return 1;
}

static int health(void* self) {
  (void)self;
  if (is_lost) trouble = "the loss is not a number";
  return is_lost;
}

static const char* error(void* self) {
  (void)self;
  return trouble;
}

static void close_file(void* self) {
  (void)self;
  fclose(file);
}

const elastrun_plugin* elastrun_plugin_describe(void) {
  static const elastrun_plugin table = {.abi = ELASTRUN_PLUGIN_ABI,
                                        .size = sizeof(elastrun_plugin),
                                        .name = "loss_watch",
                                        .open = open_file,
                                        .metric = metric,
                                        .event = event,
                                        .flush = flush,
                                        .health = health,
                                        .error = error,
                                        .close = close_file};
  return &table;
}
