// SPDX-License-Identifier: Apache-2.0
// A plug-in that does what its argument says: the tests of plug-ins compile and load it. Words are
// separated by commas:
//
//     throw, throw-int    metric() throws
//     fail                metric() returns 3, and error() says why
//     block               event() never returns, but sleeps
//     block-flush         flush() never returns
//     refuse, throw-open  open() fails, throws
//     block-open          open() never returns
//     ill, block-health   health() fails, never returns
//     log                 open() and event() write to the launcher's log
//     crash               event() follows a null pointer
//     trap                a destructor of the library crashes
//     out=FILE            what is called is written there, a line each
#include <csignal>
#include <cstdio>
#include <elastrun/plugin/elastrun_plugin.h>
#include <stdexcept>
#include <string>
#include <unistd.h>

#ifndef ABI
#define ABI ELASTRUN_PLUGIN_ABI
#endif

namespace {

struct Plugin {
  const elastrun_host* host;
  std::string words, trouble;
  std::FILE* out = nullptr;
  pid_t thread = 0;

  bool has(const std::string& word) const {
    return ("," + words + ",").find("," + word + ",") != std::string::npos;
  }
  [[noreturn]] void sleep() const {
    for (;;) pause();
  }
  void say(const std::string& text) {
    if (thread == 0) thread = gettid();
    if (thread != gettid()) say_line("another thread");
    say_line(text);
  }
  void say_line(const std::string& text) const {
    if (out == nullptr) return;
    std::fprintf(out, "%s\n", text.c_str());
    std::fflush(out);
  }
  ~Plugin() {
    if (out != nullptr) std::fclose(out);
  }
};

// What exit(3) would run, also while a call is under way.
struct Trap {
  bool armed = false;
  ~Trap() {
    if (armed) std::raise(SIGSEGV);
  }
} trap;

Plugin& of(void* self) {
  return *static_cast<Plugin*>(self);
}

// Of one that refuses, close() is not called: what it has is no leak.
Plugin* last_opened = nullptr;

int open(const elastrun_host* host, void** self) {
  auto* const plugin = last_opened = new Plugin{host, host->argument, {}};
  *self = plugin;
  const auto at = plugin->words.find("out=");
  if (at != std::string::npos) {
    const auto path = plugin->words.substr(at + 4);
    plugin->out = std::fopen(path.substr(0, path.find(',')).c_str(), "a");
  }
  plugin->say("open " + std::string(host->run_id) + " " + host->role);
  if (plugin->has("throw-open")) throw std::runtime_error("no table free");
  if (plugin->has("block-open")) plugin->sleep();
  trap.armed = plugin->has("trap");
  if (plugin->has("refuse")) plugin->trouble = "it is Monday";
  if (plugin->has("log")) host->log(host, ELASTRUN_WARN, "opened\x1b[31m");
  return plugin->has("refuse");
}

int metric(void* self, const elastrun_record* record) {
  of(self).say("metric " + std::string(record->scope) + "." + record->name);
  if (of(self).has("throw")) throw std::out_of_range("thrown on purpose");
  if (of(self).has("throw-int")) throw 7;
  if (of(self).has("fail")) of(self).trouble = "the disk is full of eels";
  return of(self).has("fail") ? 3 : 0;
}

int event(void* self, const elastrun_record* record) {
  of(self).say("event " + std::string(record->name));
  if (of(self).has("log")) of(self).host->log(of(self).host, ELASTRUN_ERROR, record->name);
  if (of(self).has("crash")) *static_cast<volatile int*>(nullptr) = 1;
  if (of(self).has("block")) {
    trap.armed = true;
    of(self).sleep();
  }
  return 0;
}

int span(void* self, const elastrun_record* record) {
  of(self).say("span " + std::string(record->name) +
               (record->end_ns > record->start_ns ? " took time" : ""));
  return 0;
}

int window(void* self, const elastrun_record* record) {
  of(self).say("window " + std::string(record->name) + " " + std::to_string(record->count));
  return 0;
}

int series(void* self, const elastrun_record* record) {
  std::string text = "series " + std::string(record->name);
  for (size_t i = 0; i < record->attribute_count; ++i) {
    const auto& label = record->attributes[i];
    text += " " + std::string(label.key) + "=";
    text += label.value.type == ELASTRUN_TEXT ? label.value.as.text : "?";
  }
  if (record->value.type == ELASTRUN_WHOLE) text += " " + std::to_string(record->value.as.whole);
  if (record->value.type == ELASTRUN_NUMBER) text += " " + std::to_string(record->value.as.number);
  of(self).say(text);
  return 0;
}

int flush(void* self) {
  of(self).say("flush");
  if (of(self).has("block-flush")) of(self).sleep();
  return 0;
}

int health(void* self) {
  of(self).say("health");
  if (of(self).has("block-health")) of(self).sleep();
  if (of(self).has("ill")) of(self).trouble = "GPU 3 has fallen off the bus";
  return of(self).has("ill");
}

const char* error(void* self) {
  return of(self).trouble.c_str();
}

void close(void* self) {
  of(self).say("close");
  delete static_cast<Plugin*>(self);
}

}  // namespace

extern "C" const elastrun_plugin* elastrun_plugin_describe(void) {
#ifdef TAKES_NOTHING
  static const elastrun_plugin table = {ABI,       sizeof(elastrun_plugin),
                                        "nothing", open,
                                        nullptr,   nullptr,
                                        nullptr,   nullptr,
                                        nullptr,   flush,
                                        nullptr,   error,
                                        close};
#else
  static const elastrun_plugin table = {ABI,         sizeof(elastrun_plugin),
                                        "difficult", open,
                                        metric,      event,
                                        span,        window,
                                        series,      flush,
                                        health,      error,
                                        close};
#endif
  return &table;
}
