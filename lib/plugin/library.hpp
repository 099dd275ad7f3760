// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "plugin/elastrun_plugin.h"
#include "telemetry/registry.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::plugin {

/// What a plug-in is told of the run.
struct Facts {
  std::string argument, version, run_id, role, host_name;
};

/// A line of a plug-in for the log.
struct Line {
  int severity = ELASTRUN_INFO;
  std::string text;
};

/// A user's shared library (plugin/elastrun_plugin.h). Every call into it goes through here, and
/// what it throws ends here. For one thread, since a call may never return; take_log() and the
/// questions are for all. It is never unloaded: its threads may still be in its code.
class Library {
 public:
  static constexpr std::size_t kLines = 100;  // of the log that wait

  /// Loads the file and opens the plug-in. Fails with Usage: no such file, no plug-in, one for
  /// another version of the interface, or one that refuses what it was given.
  static Result<std::shared_ptr<Library>> load(const std::string& path, Facts facts);
  /// The same for a table that is there already; `where` for people.
  static Result<std::shared_ptr<Library>> open(const elastrun_plugin* table, std::string_view where,
                                               Facts facts);

  const std::string& name() const { return name_; }
  bool takes(telemetry::Record::Kind kind) const;
  bool takes_series() const { return table_.series != nullptr; }
  bool has_health() const { return table_.health != nullptr; }

  /// What was given to a function of the table that is there. Fails with Io, and what the plug-in
  /// said or threw.
  Status take(const telemetry::Record& record);
  Status take(const telemetry::Point& point, const telemetry::Stamp& at);
  Status flush();
  Status health();
  void close();

  std::vector<Line> take_log();

 private:
  struct Host;
  static Host* new_host();
  Library(const elastrun_plugin& table, Facts facts);
  Status guarded(const char* function, const std::function<int()>& call);
  std::string reason() const;
  Status begin();

  elastrun_plugin table_{};
  std::string name_;
  Host* host_;  // never freed: the plug-in may use it as long as it likes
  void* self_ = nullptr;
};

/// For the end of a program, with its exit code: ends it here if a plug-in was loaded. exit(3)
/// would run the destructors of that library, maybe below its own code: one that waits would never
/// end, and one that crashes would change the job's result.
void leave_if_loaded(int code);

}  // namespace elastrun::plugin
