// SPDX-License-Identifier: Apache-2.0
#include "plugin/library.hpp"

#include "core/text.hpp"
#include "plugin/record_view.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <fmt/format.h>
#include <mutex>
#include <unistd.h>
#include <utility>

namespace elastrun::plugin {
namespace {

constexpr const char* kEntry = "elastrun_plugin_describe";

std::atomic<bool> any_loaded{false};

std::unexpected<Error> refuse(std::string_view where, std::string_view why) {
  return fail(Code::Usage, fmt::format("{}: {}", where, why));
}

/// Where we have the C++ library and the unwinder in us, a plug-in throws by another copy of both.
/// They agree on everything, but ours must have thrown once before it can catch: the first throw
/// makes the table of register sizes that a handler is entered by.
bool throw_once() {
  try {
    throw 0;
  } catch (int) {
    return true;
  }
}

Result<int> caught(const std::function<int()>& call) {
  [[maybe_unused]] static const bool can_catch = throw_once();
  try {
    return call();
  } catch (const std::exception& thrown) {
    return fail(Code::Io, fmt::format("it threw: {}", printable(std::string(thrown.what()))));
  } catch (...) {
    return fail(Code::Io, "it threw something that does not derive from std::exception");
  }
}

}  // namespace

void leave_if_loaded(int code) {
  if (any_loaded.load()) ::_exit(code);
}

struct Library::Host {
  elastrun_host host{};
  Facts facts;
  std::mutex mutex;
  std::vector<Line> lines;

  static void log(const elastrun_host* host, std::int32_t severity, const char* line) {
    if (host == nullptr || line == nullptr) return;
    // From any thread of the plug-in, and from a careless one after close(), too: hence the lock,
    // and a host that is never freed.
    auto& self = *static_cast<Host*>(host->own);
    const std::lock_guard lock(self.mutex);
    // A plug-in that logs in a loop costs its further lines and not the memory of the agent.
    if (self.lines.size() < kLines) self.lines.push_back({severity, line});
  }
};

/// Never freed, but always reachable: leak checkers accept it.
Library::Host* Library::new_host() {
  // Each plug-in is loaded on a thread of its sink's.
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<Host>>;
  const std::lock_guard lock(mutex);
  return all->emplace_back(std::make_unique<Host>()).get();
}

Library::Library(const elastrun_plugin& table, Facts facts) : host_(new_host()) {
  // A table of an older header is shorter, and what it lacks stays null; of a newer one we know the
  // front.
  std::memcpy(&table_, &table, std::min<std::size_t>(table.size, sizeof(table_)));
  // A text of foreign code, which is shown in logs and reports.
  if (table_.name != nullptr) name_ = printable(std::string(table_.name));
  host_->facts = std::move(facts);
  const auto& told = host_->facts;
  host_->host = {.abi = ELASTRUN_PLUGIN_ABI,
                 .size = sizeof(elastrun_host),
                 .version = told.version.c_str(),
                 .argument = told.argument.c_str(),
                 .run_id = told.run_id.c_str(),
                 .role = told.role.c_str(),
                 .host_name = told.host_name.c_str(),
                 .own = host_,
                 .log = &Host::log};
}

Result<std::shared_ptr<Library>> Library::load(const std::string& path, Facts facts) {
  // With a slash it is a file, and nothing that is looked for in the system's folders.
  const auto file = path.contains('/') ? path : "./" + path;
  // Before dlopen(3), which runs the constructors of the library: they may start threads already.
  any_loaded = true;
  // RTLD_NOW: a function that it lacks is told here by name, and does not end the process at its
  // first call. Never dlclose(3)d: its threads and destructors of thread_local objects would run
  // code that is no longer there.
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return fail(Code::Usage, fmt::format("cannot load the plug-in: {}",
                                         why == nullptr ? file : printable(std::string(why))));
  }
  using Describe = const elastrun_plugin* (*)();
  const auto describe = reinterpret_cast<Describe>(::dlsym(handle, kEntry));
  if (describe == nullptr) {
    return refuse(file, fmt::format("it has no function {}, so it is not a plug-in of elastrun (in "
                                    "C++ it is extern \"C\")",
                                    kEntry));
  }
  const elastrun_plugin* table = nullptr;
  const auto described = caught([&] { return table = describe(), 0; });
  if (!described) return refuse(file, described.error().text);
  return open(table, file, std::move(facts));
}

Result<std::shared_ptr<Library>> Library::open(const elastrun_plugin* table, std::string_view where,
                                               Facts facts) {
  if (table == nullptr) return refuse(where, fmt::format("{} returns nothing", kEntry));
  // Before any other member is read: in another version it may be something else.
  if (table->abi != ELASTRUN_PLUGIN_ABI) {
    return refuse(where, fmt::format("it is made for version {} of the plug-in interface, and this "
                                     "elastrun has version {}: compile it again with the "
                                     "elastrun_plugin.h of this elastrun",
                                     table->abi, ELASTRUN_PLUGIN_ABI));
  }
  // Without this, members behind its end would be read.
  if (table->size < offsetof(elastrun_plugin, open)) {
    return refuse(where, "the `size` of its table is not sizeof(elastrun_plugin)");
  }
  std::shared_ptr<Library> library(new Library(*table, std::move(facts)));
  const auto& own = library->table_;
  if (!own.metric && !own.event && !own.span && !own.window && !own.series && !own.health) {
    return refuse(where,
                  "it takes nothing: metric, event, span, window, series and health of its "
                  "table are all NULL");
  }
  const auto begun = library->begin();
  if (!begun) return refuse(where, "cannot be opened: " + begun.error().text);
  return library;
}

bool Library::takes(telemetry::Record::Kind kind) const {
  using Kind = telemetry::Record::Kind;
  switch (kind) {
    case Kind::Event:
      return table_.event != nullptr;
    case Kind::Sample:
      return table_.metric != nullptr;
    case Kind::Window:
      return table_.window != nullptr;
    case Kind::SpanEnd:
      break;
  }
  return table_.span != nullptr;
}

std::string Library::reason() const {
  if (table_.error == nullptr) return {};
  const char* why = nullptr;
  // Copied at once: the text is the plug-in's, which may change it at its next call.
  static_cast<void>(caught([&] { return why = table_.error(self_), 0; }));
  return why == nullptr ? std::string() : printable(std::string(why));
}

Status Library::guarded(const char* function, const std::function<int()>& call) {
  const auto returned = caught(call);
  if (!returned) return fail(Code::Io, fmt::format("{}(): {}", function, returned.error().text));
  if (*returned == 0) return {};
  const auto why = reason();
  if (!why.empty()) return fail(Code::Io, why);
  return fail(Code::Io, fmt::format("{}() returned {}", function, *returned));
}

Status Library::begin() {
  if (table_.open == nullptr) return {};
  return guarded("open", [this] { return table_.open(&host_->host, &self_); });
}

Status Library::take(const telemetry::Record& record) {
  const RecordView view(record);
  using Kind = telemetry::Record::Kind;
  switch (record.kind) {
    case Kind::Event:
      return guarded("event", [&] { return table_.event(self_, view.get()); });
    case Kind::Sample:
      return guarded("metric", [&] { return table_.metric(self_, view.get()); });
    case Kind::Window:
      return guarded("window", [&] { return table_.window(self_, view.get()); });
    case Kind::SpanEnd:
      break;
  }
  return guarded("span", [&] { return table_.span(self_, view.get()); });
}

Status Library::take(const telemetry::Point& point, const telemetry::Stamp& at) {
  const RecordView view(point, at);
  return guarded("series", [&] { return table_.series(self_, view.get()); });
}

Status Library::flush() {
  if (table_.flush == nullptr) return {};
  return guarded("flush", [this] { return table_.flush(self_); });
}

Status Library::health() {
  return guarded("health", [this] { return table_.health(self_); });
}

void Library::close() {
  if (table_.close == nullptr) return;
  static_cast<void>(caught([this] { return table_.close(self_), 0; }));
}

std::vector<Line> Library::take_log() {
  const std::lock_guard lock(host_->mutex);
  return std::exchange(host_->lines, {});
}

}  // namespace elastrun::plugin
