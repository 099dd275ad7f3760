// SPDX-License-Identifier: Apache-2.0
#include "caller_handler.hpp"

#include "store/blocking_store.hpp"

#include <boost/json/value_to.hpp>
#include <fmt/format.h>
#include <stdexcept>
#include <utility>

namespace elastrun {
namespace {

using rendezvous::RendezvousInfo;

/// By which a caller names what its handler has raised.
Code code_of(std::string_view kind) {
  if (kind == "closed") return Code::Closed;
  if (kind == "timeout") return Code::Timeout;
  if (kind == "graceful_exit") return Code::Cancelled;
  return Code::Rendezvous;
}

/// Null where it is missing or none.
const json::value* object_in(const json::value& value, std::string_view name) {
  const auto* member = find_member(value, name);
  return member != nullptr && member->is_object() ? member : nullptr;
}

Result<std::uint16_t> port_in(const json::value& answer) {
  const auto port = member_int_or(answer, "port", 0);
  if (port > 0 && port <= 65'535) return static_cast<std::uint16_t>(port);
  return fail(Code::Rendezvous, fmt::format("the caller's handler names the port {}", port));
}

Result<std::shared_ptr<store::BlockingStore>> store_at(const json::value& place) {
  const auto prefix = member_text_or(place, "prefix", "");
  const auto path = member_text_or(place, "path", "");
  auto store = Result<std::shared_ptr<store::BlockingStore>>();
  if (!path.empty()) {
    store = store::BlockingStore::open_file(path);
  } else if (const auto port = port_in(place)) {
    store = store::BlockingStore::connect(member_text_or(place, "host", ""), *port);
  } else {
    return std::unexpected(port.error());
  }
  if (!store || prefix.empty()) return store;
  return (*store)->within(prefix);
}

class CallerHandler final : public rendezvous::RendezvousHandler {
 public:
  CallerHandler(Caller caller, std::string backend, std::string run_id)
      : caller_(std::move(caller)), backend_(std::move(backend)), run_id_(std::move(run_id)) {}

  std::string get_backend() const override { return backend_; }
  std::string get_run_id() const override { return run_id_; }

  Result<RendezvousInfo> next_rendezvous() override {
    const auto answer = ask("next_rendezvous");
    if (!answer) return std::unexpected(answer.error());
    use_agent_store_ = member_int_or(*answer, "use_agent_store", 0) != 0;
    RendezvousInfo info;
    info.rank = static_cast<int>(member_int_or(*answer, "rank", -1));
    info.world_size = static_cast<int>(member_int_or(*answer, "world_size", 0));
    // The handler is a program of the user: what it says becomes RANK and WORLD_SIZE of all
    // workers.
    if (info.world_size < 1 || info.rank < 0 || info.rank >= info.world_size) {
      return fail(Code::Rendezvous, fmt::format("rank {} of {} nodes", info.rank, info.world_size));
    }
    if (const auto* place = object_in(*answer, "bootstrap")) {
      const auto port = port_in(*place);
      if (!port) return std::unexpected(port.error());
      info.bootstrap_store_info = {member_text_or(*place, "host", ""), *port};
    }
    if (const auto* place = object_in(*answer, "store")) {
      auto store = store_at(*place);
      if (!store) return std::unexpected(store.error());
      info.store = std::move(*store);
    }
    return info;
  }

  bool use_agent_store() const override { return use_agent_store_; }
  bool is_closed() override { return number("is_closed") != 0; }
  Status set_closed() override {
    const auto done = ask("set_closed");
    if (!done) return std::unexpected(done.error());
    return {};
  }
  int num_nodes_waiting() override { return static_cast<int>(number("num_nodes_waiting")); }
  bool shutdown() override { return number("shutdown") != 0; }

 private:
  Result<json::value> ask(std::string_view call) {
    if (const auto told = caller_.tell_last(json::object{{"call", call}}); !told) {
      return std::unexpected(told.error());
    }
    // One question at a time, so the next line is its answer.
    auto answer = caller_.hear();
    if (!answer) return answer;
    if (const auto* said = object_in(*answer, "answer")) return *said;
    const auto* refused = object_in(*answer, "error");
    if (refused == nullptr) return fail(Code::Protocol, "the caller's answer has none");
    return fail(code_of(member_text_or(*refused, "kind", "")),
                member_text_or(*refused, "text", "the caller's handler failed"));
  }

  /// Of the two that return no error, an exception tells it (handler_session.cpp).
  std::int64_t number(std::string_view call) {
    const auto answer = ask(call);
    if (!answer) throw std::runtime_error(answer.error().text);
    return member_int_or(*answer, "value", 0);
  }

  Caller caller_;
  const std::string backend_, run_id_;
  bool use_agent_store_ = false;
};

}  // namespace

rendezvous::Handler make_caller_handler(Caller caller, std::string backend, std::string run_id) {
  return std::make_shared<CallerHandler>(std::move(caller), std::move(backend), std::move(run_id));
}

}  // namespace elastrun
