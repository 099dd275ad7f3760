// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::http {

class EventFeed;

/// What goes back for one request.
struct Answer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body{};
  std::vector<std::pair<std::string, std::string>> headers{};
  /// Set: a stream of server-sent events without end, which begins with `body`.
  std::shared_ptr<EventFeed> feed{};
};

/// Gives the answer, once, now or later, on the loop. Of no effect once the connection has gone.
using Reply = std::function<void(Answer)>;

/// The bytes of one server-sent event. Line ends in `data` are kept.
std::string event_text(std::string_view event, std::string_view data);

/// Where events for all who listen are put in. A listener that does not take its events while
/// kFeedLimit bytes of them wait is cut off: browsers reconnect by themselves, and start over.
class EventFeed {
 public:
  static constexpr std::size_t kFeedLimit = 512 << 10;

  /// Takes bytes for one listener; false: it has gone.
  using Listener = std::function<bool(const std::shared_ptr<const std::string>& bytes)>;

  void add(Listener listener) { listeners_.push_back(std::move(listener)); }
  void publish(std::string_view event, std::string_view data);
  /// Events that are written already (event_text).
  void publish_text(std::string text) {
    if (!listeners_.empty() && !text.empty()) send(std::move(text));
  }
  /// A comment, by which a connection whose other end has gone is found.
  void publish_nothing();
  bool has_listeners();

 private:
  void send(std::string bytes);
  std::vector<Listener> listeners_;
};

}  // namespace elastrun::http
