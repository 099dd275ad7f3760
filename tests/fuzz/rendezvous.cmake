# SPDX-License-Identifier: Apache-2.0
# Causes and rules of restarts travel in messages.
set(message_sources lib/rendezvous/wire/messages.cpp lib/spec/agreed_rules.cpp
  lib/rendezvous/membership/world.cpp lib/core/signal_names.cpp lib/core/asio.cpp
  lib/core/codec.cpp lib/core/json.cpp lib/core/text.cpp lib/core/error.cpp
  lib/core/fmt.cpp)
elastrun_fuzz_target(rendezvous_frame SOURCES ${message_sources}
  lib/net/frame.cpp)
elastrun_fuzz_target(etcd_reader SOURCES ${message_sources}
  lib/rendezvous/election/etcd_reader.cpp lib/rendezvous/election/election.cpp
  lib/net/frame.cpp)
