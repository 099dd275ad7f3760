/* SPDX-License-Identifier: Apache-2.0
 *
 * Plug-ins of elastrun: a shared library that takes metrics and events of a run, or says whether
 * the node is well. `elastrun --metrics plugin:FILE[?ARGUMENT]` loads it; elastrun-plugin(7)
 * describes it, config/examples/plugin is one.
 *
 * A plug-in exports one function, elastrun_plugin_describe(), which returns a table of those
 * that it wants to have called. This header is C99 and C++, and all there is: nothing is linked.
 *
 * Threads. All calls into one plug-in are made by one thread, which is there for it alone, one call
 * after the other. They may block: the job does not wait for them, and what comes meanwhile waits
 * up to 4 MiB; then the oldest goes, counted. At the end of a job all sinks together have 2 s.
 *
 * Failure. A function that returns something else than 0 has failed, and error() is asked why. What
 * a function of C++ throws is caught, and counts as a failure. A failure costs the record that was
 * given; the first one is shown, all are counted in the report. The job goes on.
 *
 * Memory. What a pointer from elastrun points to is valid until the call returns, but for `host`,
 * which stays. Strings end with a zero byte, are UTF-8, and never NULL unless it says so.
 *
 * Versions. ELASTRUN_PLUGIN_ABI changes when something here changes its meaning; then old plug-ins
 * are refused. What is only added comes at the end of a structure: `size` tells how much of it the
 * other side knows.
 */
#ifndef ELASTRUN_PLUGIN_H
#define ELASTRUN_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ELASTRUN_PLUGIN_ABI 1u

/* The type of a value, and where in `as` it stands. */
enum {
  ELASTRUN_NONE = 0, /* JSON's null */
  ELASTRUN_TRUTH = 1,
  ELASTRUN_WHOLE = 2,
  ELASTRUN_NUMBER = 3,
  ELASTRUN_TEXT = 4
};

typedef struct elastrun_value {
  int32_t type;
  union {
    int32_t truth;
    int64_t whole;
    double number;
    const char* text;
  } as;
} elastrun_value;

typedef struct elastrun_attribute {
  const char* key;
  elastrun_value value;
} elastrun_attribute;

/* What a record is; of series, the kind of their instrument. */
enum {
  ELASTRUN_EVENT = 0,
  ELASTRUN_METRIC = 1,
  ELASTRUN_WINDOW = 2,
  ELASTRUN_SPAN = 3,
  ELASTRUN_COUNTER = 4, /* a total that only rises */
  ELASTRUN_UP_DOWN = 5, /* a total that may fall */
  ELASTRUN_GAUGE = 6,
  ELASTRUN_STAT = 7, /* summarised: see aggregates */
  ELASTRUN_HISTOGRAM = 8
};

/* OpenTelemetry's numbers. */
enum {
  ELASTRUN_TRACE = 1,
  ELASTRUN_DEBUG = 5,
  ELASTRUN_INFO = 9,
  ELASTRUN_WARN = 13,
  ELASTRUN_ERROR = 17,
  ELASTRUN_FATAL = 21
};

typedef struct elastrun_record {
  uint32_t size;                        /* of this structure in the elastrun that runs */
  int32_t kind;                         /* ELASTRUN_EVENT, ... */
  int32_t severity;                     /* ELASTRUN_INFO, ... */
  uint32_t no_data;                     /* of windows and series: 1 where nothing was seen */
  int64_t time_ns;                      /* since 1970 */
  int64_t mono_ns;                      /* the same moment by CLOCK_MONOTONIC */
  uint64_t id;                          /* 0: has none */
  const char* scope;                    /* the library or group: "torchelastic" */
  const char* name;                     /* "worker.ended" */
  const char* unit;                     /* UCUM: "s", "By", "1"; "": not known */
  elastrun_value value;                 /* of metrics, counters and gauges */
  const elastrun_attribute* attributes; /* of an event; the labels of a series */
  size_t attribute_count;
  int64_t start_ns, end_ns; /* of windows and spans, and since when a series counts; monotonic */
  uint64_t count;           /* of windows and summaries: values in it */
  const elastrun_attribute* aggregates; /* of windows and summaries: "mean", "sum", "p99", ... */
  size_t aggregate_count;
} elastrun_record;

/* What elastrun tells a plug-in, and does for it. */
typedef struct elastrun_host {
  uint32_t abi, size;
  const char* version;  /* of elastrun */
  const char* argument; /* what follows the question mark in FILE?ARGUMENT; or "" */
  const char* run_id;
  const char* role;
  const char* host_name;
  void* own; /* elastrun's */
  /* A line for elastrun's log, with a severity; from any thread, until close() has returned. Lines
     below WARN are shown as LOGLEVEL says; of more than 100 that wait, the others are dropped. */
  void (*log)(const struct elastrun_host* host, int32_t severity, const char* line);
} elastrun_host;

/* The functions of a plug-in. Each may be NULL, and is not called then; one at least of metric,
   event, span, window, series and health is there. */
typedef struct elastrun_plugin {
  uint32_t abi;     /* ELASTRUN_PLUGIN_ABI */
  uint32_t size;    /* sizeof(elastrun_plugin) */
  const char* name; /* for people */
  /* Before the job starts, which a failure ends with a usage error. What is put into `self` is
     given to all others. At most 30 s. */
  int (*open)(const elastrun_host* host, void** self);
  /* A value that was just put: torchelastic's MetricHandler.emit. `scope` is its group. */
  int (*metric)(void* self, const elastrun_record* record);
  /* Something that happened: torchelastic's EventHandler.record, and the journal's events. */
  int (*event)(void* self, const elastrun_record* record);
  /* A stretch of time that has ended: rendezvous, the life of a worker. */
  int (*span)(void* self, const elastrun_record* record);
  /* What values of an instrument were in a window of time. */
  int (*window)(void* self, const elastrun_record* record);
  /* All series as they stand, one after the other and then flush(): as for a page of Prometheus,
     every --metrics-interval. Totals are since the start. */
  int (*series)(void* self, const elastrun_record* record);
  /* No more for now: write out what you have collected. */
  int (*flush)(void* self);
  /* Every 10 s where /healthz is served: something else than 0 makes it answer 503, with the reason
     of error(). So does a call that takes longer than 60 s. */
  int (*health)(void* self);
  /* Why the call that has just failed did; NULL or "": no reason is known. */
  const char* (*error)(void* self);
  /* The end; nothing is called afterwards. Not called if an earlier call has not returned, or if
     open() has failed. The library itself stays loaded. */
  void (*close)(void* self);
} elastrun_plugin;

#if defined(__GNUC__)
#define ELASTRUN_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define ELASTRUN_PLUGIN_EXPORT
#endif

/* The one function that a plug-in must have. The table stays as it is. */
ELASTRUN_PLUGIN_EXPORT const elastrun_plugin* elastrun_plugin_describe(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ELASTRUN_PLUGIN_H */
