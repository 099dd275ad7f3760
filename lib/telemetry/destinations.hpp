// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "telemetry/events.hpp"

#include <concepts>

/// torchelastic's events in the words of its module, on the pipeline of the process.
namespace elastrun::telemetry::events {

/// `handler` gets every event that is recorded, in place of the one before; null: nobody does.
void configure(std::shared_ptr<EventHandler> handler);
/// To the handlers that listen, and to the one of that name (find_handler), which is made when it
/// is first used. Fails with Usage for a name that is not known.
Status record(Event event, std::string_view destination = "null");
/// `make` gives an RdzvEvent; not called when nobody listens.
template <std::invocable Make>
void record_rdzv_event(Make&& make) {
  if (!process_pipeline().wants(kRdzvScope)) return;
  record_rdzv(process_pipeline(), std::forward<Make>(make)());
}

}  // namespace elastrun::telemetry::events
