// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/remote_session.hpp"

namespace elastrun::rendezvous {

CoordinatorSearch::Limits search_limits(const RemoteSettings& settings) {
  const Rules& rules = settings.rules;
  const Duration silence = settings.keep_alive_interval * settings.keep_alive_max_attempt;
  return {settings.run_id, rules.join_timeout, rules.progress_interval, silence,
          settings.read_timeout};
}

}  // namespace elastrun::rendezvous
