// SPDX-License-Identifier: Apache-2.0
#include "caller_request.hpp"

#include "core/clock.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <boost/json/value_to.hpp>
#include <cmath>
#include <fmt/format.h>
#include <set>

namespace elastrun {
namespace {

/// The fields of one object: takes those that are there, and remembers the first that is wrong.
class Fields {
 public:
  Fields(const json::object& object, std::string where) : object_(object), where_(where) {}

  template <class T>
  void take(std::string_view name, T& into) {
    const auto* value = find(name);
    if (value == nullptr || value->is_null()) return;
    auto read = json::try_value_to<T>(*value);
    if (read) {
      into = std::move(*read);
    } else {
      refuse(name, "is of another type than it has to be");
    }
  }
  void take_seconds(std::string_view name, Duration& into) {
    double seconds = to_seconds(into);
    take(name, seconds);
    constexpr double kLongest = 1e9;  // thirty years; nan is below nothing
    if (!(seconds >= 0 && seconds <= kLongest)) {
      return refuse(name, "has to be a number of seconds from 0 to 1e9");
    }
    into = from_seconds(seconds);
  }
  const json::value* find(std::string_view name) {
    known_.insert(std::string(name));
    return object_.if_contains(name);
  }
  void refuse(std::string_view name, std::string_view why) {
    // The first one: those that follow are often its consequences.
    if (!error_) error_ = Error{Code::Usage, fmt::format("{}{} {}", where_, name, why)};
  }
  Status end() {
    for (const auto& field : object_) {
      // A package that is newer than this program asks for something that would silently not
      // happen.
      if (!known_.contains(field.key())) refuse(field.key(), "is not known to this elastrun");
    }
    if (error_) return std::unexpected(*error_);
    return {};
  }

 private:
  const json::object& object_;
  const std::string where_;
  std::set<std::string, std::less<>> known_;
  std::optional<Error> error_;
};

/// A number for all, or an object of them by local rank.
void take_streams(Fields& fields, std::string_view name, spec::StdMap& into) {
  const auto* value = fields.find(name);
  if (value == nullptr || value->is_null()) return;
  std::map<std::string, unsigned> by_rank;
  const auto* object = value->if_object();
  if (object == nullptr) {
    fields.take(name, into.everyone);
  } else {
    fields.take(name, by_rank);
  }
  const auto fits = [](unsigned bits) { return bits <= spec::StdMap::kBoth; };
  bool sound = fits(into.everyone);
  for (const auto& [rank, bits] : by_rank) {
    // By its length as well, since std::stoi() throws for what an int cannot hold.
    const bool number = !rank.empty() && rank.size() < 7 &&
                        std::ranges::all_of(rank, [](char c) { return c >= '0' && c <= '9'; });
    sound = sound && number && fits(bits);
    if (number) into.by_local_rank[std::stoi(rank)] = bits;
  }
  if (!sound) fields.refuse(name, "has to be 0, 1, 2 or 3, or an object of those by local rank");
}

void take_binding(Fields& fields, spec::NumaBinding& into) {
  using spec::NumaBinding;
  std::string name;
  fields.take("numa_binding", name);
  if (name == "node") return void(into = NumaBinding::Node);
  if (name == "socket") return void(into = NumaBinding::Socket);
  if (name == "exclusive") return void(into = NumaBinding::Exclusive);
  if (name == "core-complex") return void(into = NumaBinding::CoreComplex);
  if (!name.empty()) {
    fields.refuse("numa_binding", "has to be node, socket, exclusive or core-complex");
  }
}

Status take_rendezvous(const json::value& text, CallerRequest& request) {
  const auto* object = text.if_object();
  if (object == nullptr) return fail(Code::Usage, "rendezvous has to be an object");
  Fields fields(*object, "rendezvous.");
  rendezvous::RendezvousParameters parameters;
  fields.take("asked_at", request.asked_at);
  fields.take("backend", parameters.backend);
  fields.take("endpoint", parameters.endpoint);
  fields.take("run_id", parameters.run_id);
  fields.take("min_nodes", parameters.min_nodes);
  fields.take("max_nodes", parameters.max_nodes);
  fields.take("local_addr", parameters.local_addr);
  fields.take("node_rank", parameters.node_rank);
  fields.take("conf", parameters.conf);
  // Before a handler is made, which may open a port.
  if (const auto sound = fields.end(); !sound) return sound;
  request.backend = parameters.backend;
  request.run_id = parameters.run_id;
  // That handler is the caller's, asked over a socket that the caller gives us.
  if (request.asked_at) return {};
  auto handler = rendezvous::get_rendezvous_handler(parameters);
  if (!handler) return std::unexpected(handler.error());
  request.spec.rdzv_handler = std::move(*handler);
  return {};
}

void take_logs(Fields& fields, agent::WorkerSpec& spec) {
  fields.take("log_dir", spec.logs.log_dir);
  take_streams(fields, "redirects", spec.logs.redirects);
  take_streams(fields, "tee", spec.logs.tee);
  fields.take("local_ranks_filter", spec.logs.local_ranks_filter);
  fields.take("log_line_prefix_template", spec.logs.prefix_template);
  const auto filters = [&fields](std::string_view name, auto& into) {
    std::vector<std::string> words;
    fields.take(name, words);
    const auto* value = fields.find(name);
    if (value != nullptr && !value->is_null()) into = std::move(words);
  };
  filters("duplicate_stdout_filters", spec.duplicate_stdout_filters);
  filters("duplicate_stderr_filters", spec.duplicate_stderr_filters);
}

void take_workers(Fields& fields, agent::WorkerSpec& spec) {
  fields.take("role", spec.role);
  fields.take("local_world_size", spec.local_world_size);
  fields.take("entrypoint", spec.entrypoint);
  fields.take("args", spec.args);
  fields.take("env", spec.env);
  fields.take("inherited_fds", spec.inherited_fds);
  fields.take("max_restarts", spec.max_restarts);
  fields.take_seconds("monitor_interval", spec.monitor_interval);
  fields.take("master_addr", spec.master_addr);
  fields.take("master_port", spec.master_port);
  fields.take("local_addr", spec.local_addr);
  fields.take("event_log_handler", spec.event_log_handler);
  fields.take("virtual_local_rank", spec.virtual_local_rank);
  fields.take_seconds("exit_barrier_timeout", spec.exit_barrier_timeout);
  fields.take_seconds("shutdown_timeout", spec.shutdown_timeout);
  fields.take("signals_to_handle", spec.signals_to_handle);
  take_binding(fields, spec.numa_binding);
}

}  // namespace

Result<CallerRequest> read_caller_request(const json::value& text) {
  const auto* object = text.if_object();
  if (object == nullptr) return fail(Code::Usage, "the caller's request has to be an object");
  CallerRequest request;
  Fields fields(*object, "");
  take_workers(fields, request.spec);
  take_logs(fields, request.spec);
  fields.take("metrics", request.wants_metrics);
  fields.take("events", request.wants_events);
  fields.take("options", request.options);
  fields.take("fork_socket", request.fork_socket);
  // Up to 2 are the streams of the job.
  if (request.fork_socket.value_or(3) < 3) fields.refuse("fork_socket", "has to be above 2");
  const auto* rendezvous = fields.find("rendezvous");
  if (const auto sound = fields.end(); !sound) return std::unexpected(sound.error());
  if (rendezvous == nullptr) return fail(Code::Usage, "rendezvous is missing");
  if (const auto taken = take_rendezvous(*rendezvous, request); !taken) {
    return std::unexpected(taken.error());
  }
  return request;
}

}  // namespace elastrun
