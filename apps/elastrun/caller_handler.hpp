// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "caller.hpp"
#include "rendezvous/session/handler.hpp"

#include <string>

namespace elastrun {

/// The rendezvous handler of a caller: a call is a line to it, and its answer the next line.
/// `backend`, `run_id`: as it said in the request.
rendezvous::Handler make_caller_handler(Caller caller, std::string backend, std::string run_id);

}  // namespace elastrun
