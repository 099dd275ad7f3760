// SPDX-License-Identifier: Apache-2.0
#include "http/answer.hpp"

namespace elastrun::http {

std::string event_text(std::string_view event, std::string_view data) {
  std::string text;
  text.append("event: ").append(event).append("\n");
  for (std::size_t begin = 0; begin <= data.size();) {
    const auto end = std::min(data.find('\n', begin), data.size());
    text.append("data: ").append(data.substr(begin, end - begin)).append("\n");
    begin = end + 1;
  }
  return text + "\n";
}

void EventFeed::publish(std::string_view event, std::string_view data) {
  if (!listeners_.empty()) send(event_text(event, data));
}

void EventFeed::publish_nothing() {
  if (!listeners_.empty()) send(":\n\n");
}

bool EventFeed::has_listeners() {
  std::erase_if(listeners_, [](const Listener& listener) { return !listener(nullptr); });
  return !listeners_.empty();
}

void EventFeed::send(std::string bytes) {
  const auto shared = std::make_shared<const std::string>(std::move(bytes));
  std::erase_if(listeners_, [&](const Listener& listener) { return !listener(shared); });
}

}  // namespace elastrun::http
