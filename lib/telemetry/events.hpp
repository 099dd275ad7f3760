// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "telemetry/route.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// torchelastic's events: a facade of the pipeline. An event is an Event record of the scope
/// "torchelastic.agent" or "torchelastic.worker", its metadata are the attributes.
namespace elastrun::telemetry::events {

enum class Source { Agent, Worker };

struct Event {
  std::string name;
  Source source = Source::Agent;
  std::int64_t timestamp = 0;  // milliseconds since the epoch; 0: when it is recorded
  std::vector<Attribute> metadata{};
  /// One line, as Python's json.dumps writes torchelastic's Event.
  std::string to_json() const;
  bool operator==(const Event&) const = default;
};

/// Where events end. One that throws loses its own events only.
class EventHandler {
 public:
  virtual ~EventHandler() = default;
  virtual void record(const Event& event) = 0;
};
class NullEventHandler final : public EventHandler {
 public:
  void record(const Event&) override {}
};
using LineWriter = std::function<void(std::string_view)>;
/// One JSON object a line, by `write` or on stderr.
class ConsoleEventHandler final : public EventHandler {
 public:
  explicit ConsoleEventHandler(LineWriter write = {});
  void record(const Event& event) override;

 private:
  LineWriter write_;
};

using HandlerFactory = std::function<std::shared_ptr<EventHandler>(const LineWriter&)>;
/// Adds a name for --event-log-handler, or replaces it.
void register_handler(std::string name, HandlerFactory factory);
std::vector<std::string> handler_names();
/// The handler of that name, made now: `null`, `dynamic_rendezvous` (the same), `console`, and what
/// was registered. Fails with Usage and the known names, so a typing error is found before anything
/// starts. `write` is where a console handler writes.
Result<std::shared_ptr<EventHandler>> find_handler(std::string_view name, LineWriter write = {});

/// From now on `handler` gets every torchelastic event of the pipeline.
RouteId attach(Pipeline& pipeline, std::shared_ptr<EventHandler> handler,
               std::string scope = "torchelastic.*");
/// Under `scope` and "agent" or "worker".
void record(Pipeline& pipeline, Event event, std::string_view scope = "torchelastic.");

// Events of agent and workers, as torchrun records them
// --------------------------------------------

/// What the agent's events have in common.
struct AgentFacts {
  std::string run_id, role = "default", hostname, rdzv_backend, entry_point;
  std::optional<int> group_rank{}, group_world_size{};  // unknown before the first rendezvous
  int agent_restarts = 0;                               // spent
  Duration total_run_time{};                            // zero until the end
};
struct WorkerFacts {
  int global_rank = 0, local_rank = 0, role_rank = 0, role_world_size = 1;
  std::optional<int> pid{};
  std::optional<int> exit_code{};  // of a failed worker; negative: the signal
};
/// `state`: RENDEZVOUS, ASSIGN_WORKER_RANKS (both with a duration), SUCCEEDED or FAILED.
Event agent_event(std::string_view state, const AgentFacts& agent,
                  std::optional<Duration> duration = {}, std::optional<std::string> raw_error = {});
/// `state`: START, SUCCEEDED, FAILED or TERMINATED.
Event worker_event(std::string_view state, const AgentFacts& agent, const WorkerFacts& worker,
                   std::optional<std::string> raw_error = {});
/// `name`: "watchdog started", "watchdog stopped", "timer expired" or "kill worker process"; the
/// last two with `timer`: worker_pid, scope_id, expiration_time, signal, all as text.
Event watchdog_event(std::string_view name, const AgentFacts& agent,
                     const std::vector<std::pair<std::string, std::string>>& timer = {});

}  // namespace elastrun::telemetry::events
